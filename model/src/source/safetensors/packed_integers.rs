//! Matrices of integers of 4 or 8 bits as compressed-tensors stores them, a row after another: a
//! value is `scale * (q - zero)`. Integers that are packed in words have an offset of half their
//! range. Zero points have it too, so it cancels. Signed bytes get it here.

use safetensors::tensor::Dtype as Stored;

use super::files::{ByteRange, Checkpoint, format_error};
use super::integer_rows::{IntegerMatrix, IntegerRows};
use super::integers::{check_order, scales};
use crate::quantization::{FactorLayout, IntegerFormat, QuantGroup};
use crate::source::{SourceError, StoredType};

const WORD_BITS: usize = 32;
const SUPPORTED: &str =
    "supported: I32 words or I8 integers and zero points, F16, BF16 and F32 scales";
/// Maximum number of rows whose integers are read to find out whether their scales matter.
const OTHER_ROWS_MAX: usize = 4096;
/// Offset of 8-bit integers, as a bit.
const SIGN: u8 = 128;

/// A matrix that is stored in several tensors.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    /// Words of consecutive integers, `[outputs, words]`, the lowest bits first; or bytes.
    integers: &'a ByteRange,
    /// Factors, `[outputs, groups]`, or one for the whole matrix.
    scales: &'a ByteRange,
    /// Words of the zero points of consecutive outputs, `[words, groups]`, or bytes; none if all
    /// are in the middle of the range.
    zeros: Option<&'a ByteRange>,
    /// Group of each input, if the file contains it.
    order: Option<&'a ByteRange>,
    bits: u32,
    /// Number of integers in an element of a tensor.
    per_element: usize,
    outputs: usize,
    inputs: usize,
    /// Number of inputs that share a scale.
    group: usize,
}

impl<'a> Matrix<'a> {
    /// Creates the matrix of module `stem`.
    ///
    /// # Errors
    /// Tensors that are missing, inconsistent, or of types that are not supported.
    pub(super) fn new(
        files: &'a Checkpoint,
        stem: &str,
        format: IntegerFormat,
    ) -> Result<Matrix<'a>, SourceError> {
        let IntegerFormat { bits, packed, factors, symmetric } = format;
        let name = |part: &str| format!("{stem}.weight{part}");
        let part = if packed { "_packed" } else { "" };
        let (integers, scales) = (files.require(&name(part))?, files.require(&name("_scale"))?);
        let zeros = if symmetric { None } else { Some(files.require(&name("_zero_point"))?) };
        let per_element = if packed { WORD_BITS / bits as usize } else { 1 };
        let [outputs, elements] = *integers.shape.as_slice() else {
            return Err(files.shape_error(integers, &name(part), vec![0, 0]));
        };
        let inputs = match files.get(&name("_shape")) {
            Some(shape) => stored_inputs(files, &name("_shape"), shape, outputs)?,
            None => elements.checked_mul(per_element).unwrap_or(0),
        };
        let group = match factors {
            FactorLayout::Groups(QuantGroup::Inputs(size)) => size.min(inputs).max(1),
            _ => inputs.max(1),
        };
        let groups = inputs.div_ceil(group);
        let of_integers = vec![outputs, inputs.div_ceil(per_element)];
        let of_scales = match factors {
            FactorLayout::All if scales.shape.is_empty() => Vec::new(),
            FactorLayout::All => vec![1],
            _ => vec![outputs, groups],
        };
        let types: &[Stored] = if packed { &[Stored::I32, Stored::U32] } else { &[Stored::I8] };
        let floats: &[Stored] = &[Stored::F16, Stored::BF16, Stored::F32];
        let of_zeros = vec![outputs.div_ceil(per_element), groups];
        let of_zeros = zeros.map(|zeros| (zeros, "_zero_point", types, of_zeros));
        let parts = [(integers, part, types, of_integers), (scales, "_scale", floats, of_scales)];
        for (stretch, part, types, expected) in parts.into_iter().chain(of_zeros) {
            let tensor = name(part);
            if stretch.shape != expected || outputs == 0 || inputs == 0 {
                return Err(files.shape_error(stretch, &tensor, expected));
            }
            files.require_type(stretch, &tensor, types, SUPPORTED)?;
        }
        let order = files.get(&name("_g_idx"));
        Ok(Matrix { integers, scales, zeros, order, bits, per_element, outputs, inputs, group })
    }

    /// Returns the scales and zero points of some rows, without their integers.
    fn scales_and_zeros(
        &self,
        files: &Checkpoint,
        first: usize,
        count: usize,
    ) -> Result<IntegerRows, SourceError> {
        let (inputs, group, bits) = (self.inputs, self.group, self.bits);
        let mut rows = IntegerRows { inputs, group, bits, ..IntegerRows::default() };
        let groups = rows.groups();
        let is_one = self.scales.elements() == 1;
        let (from, stored_count) = if is_one { (0, 1) } else { (first * groups, count * groups) };
        let mut bytes = vec![0u8; stored_count * self.scales.element_bytes()];
        files.read(self.scales, from, &mut bytes)?;
        rows.scales = scales(self.scales.stored, &bytes);
        if is_one {
            rows.scales = vec![rows.scales[0]; count * groups];
        }
        rows.zeros = match self.zeros {
            Some(zeros) => self.stored_zeros(files, zeros, first, count)?,
            None => vec![1 << (bits - 1); count * groups],
        };
        Ok(rows)
    }

    /// Returns the zero points of some rows, as `[row][group]`.
    fn stored_zeros(
        &self,
        files: &Checkpoint,
        zeros: &ByteRange,
        first: usize,
        count: usize,
    ) -> Result<Vec<u8>, SourceError> {
        let (per_element, size) = (self.per_element, zeros.element_bytes());
        let groups = self.inputs.div_ceil(self.group);
        let lines = first / per_element..(first + count).div_ceil(per_element);
        let mut bytes = vec![0u8; lines.len() * groups * size];
        files.read(zeros, lines.start * groups, &mut bytes)?;
        let zero = |row: usize, group: usize| {
            let element = (row / per_element - lines.start) * groups + group;
            self.integer(&bytes[element * size..][..size], row % per_element)
        };
        let rows = first..first + count;
        let of_rows = rows.flat_map(|row| (0..groups).map(move |group| (row, group)));
        Ok(of_rows.map(|(row, group)| zero(row, group)).collect())
    }

    /// Returns an integer of consecutive ones.
    fn integer(&self, bytes: &[u8], index: usize) -> u8 {
        match (self.bits, self.per_element) {
            (8, 1) => bytes[index] ^ SIGN,
            (8, _) => bytes[index],
            _ => bytes[index / 2] >> (index % 2 * 4) & 15,
        }
    }
}

impl IntegerMatrix for Matrix<'_> {
    fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inputs)
    }

    fn stored_type(&self, files: &Checkpoint) -> Result<StoredType, SourceError> {
        if let Some(order) = self.order {
            check_order(files, order, self.inputs, self.group)?;
        }
        let mut all = self.scales_and_zeros(files, 0, self.outputs)?;
        let groups = all.groups();
        let others = (0..self.outputs).filter(|row| all.has_other_scales(*row));
        for row in others.take(OTHER_ROWS_MAX).collect::<Vec<_>>() {
            let cleared = self.rows(files, row, 1)?.scales;
            all.scales[row * groups..][..groups].copy_from_slice(&cleared);
        }
        Ok(all.stored_type())
    }

    fn rows(
        &self,
        files: &Checkpoint,
        first: usize,
        count: usize,
    ) -> Result<IntegerRows, SourceError> {
        let mut rows = self.scales_and_zeros(files, first, count)?;
        let row_bytes = self.integers.shape[1] * self.integers.element_bytes();
        let mut bytes = vec![0u8; count * row_bytes];
        files.read(self.integers, first * self.integers.shape[1], &mut bytes)?;
        rows.q = Vec::with_capacity(count * self.inputs);
        for bytes in bytes.chunks_exact(row_bytes) {
            rows.q.extend((0..self.inputs).map(|input| self.integer(bytes, input)));
        }
        rows.clear_unused_scales();
        Ok(rows)
    }
}

/// Returns the number of inputs according to a tensor of the matrix's shape.
fn stored_inputs(
    files: &Checkpoint,
    tensor: &str,
    shape: &ByteRange,
    outputs: usize,
) -> Result<usize, SourceError> {
    files.require_shape(shape, tensor, vec![2])?;
    let types = [Stored::I64, Stored::U64, Stored::I32, Stored::U32];
    files.require_type(shape, tensor, &types, "supported: I64, I32")?;
    let size = shape.element_bytes();
    let mut bytes = vec![0u8; 2 * size];
    files.read(shape, 0, &mut bytes)?;
    let number = |bytes: &[u8]| {
        let mut wide = [0u8; 8];
        wide[..size].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    let (rows, inputs) = (number(&bytes[..size]), number(&bytes[size..]));
    // Larger sizes would overflow the products of sizes, and no tensor could have them.
    if rows != outputs as u64 || inputs > u64::from(u32::MAX) {
        let reason = format!("tensor {tensor} is {rows} x {inputs}, but {outputs} rows are stored");
        return Err(format_error(files.path(shape), reason));
    }
    Ok(inputs as usize)
}
