//! Matrices of 4-bit integers with a scale and a zero point per group of inputs, as stored by GPTQ
//! and AWQ: a value is `scale * (q - zero)`. A word contains eight integers: in GPTQ eight inputs
//! of an output, in AWQ eight outputs of an input. Zero points are packed along the outputs in
//! both.

use std::ops::Range;

use half::{bf16, f16};
use safetensors::tensor::Dtype as Stored;

use super::files::{ByteRange, Checkpoint, format_error};
use super::integer_rows::{IntegerMatrix, IntegerRows};
use crate::quantization::{QuantGroup, Quantization, StoredZeros};
use crate::source::{SourceError, StoredType};

/// Number of integers in a word.
const WORD: usize = 8;
/// Index of the integer in a word in which AWQ stores output `i` of eight.
const AWQ_PLACES: [usize; WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix that is stored in three tensors.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    integers: &'a ByteRange,
    scales: &'a ByteRange,
    zeros: &'a ByteRange,
    /// Group of each input, if the file contains it.
    order: Option<&'a ByteRange>,
    packing: Packing,
    inputs: usize,
    outputs: usize,
    /// Number of inputs that share a scale.
    group: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gptq(StoredZeros),
    Awq,
}

impl<'a> Matrix<'a> {
    /// Finds the matrix `stem`; `None` if there are no packed integers of that name, or
    /// `quantization` is another method.
    ///
    /// # Errors
    /// Inconsistent tensors, or types that are not supported.
    pub(super) fn find(
        files: &'a Checkpoint,
        stem: &str,
        quantization: &Quantization,
    ) -> Result<Option<Matrix<'a>>, SourceError> {
        let (packing, group) = match quantization {
            Quantization::Gptq { group, zeros, .. } => (Packing::Gptq(*zeros), *group),
            Quantization::Awq { group } => (Packing::Awq, *group),
            _ => return Ok(None),
        };
        let name = |part: &str| format!("{stem}.{part}");
        let Some(integers) = files.get(&name("qweight")) else {
            return Ok(None);
        };
        let (scales, zeros) = (files.require(&name("scales"))?, files.require(&name("qzeros"))?);
        let (inputs, outputs) = match (integers.shape.as_slice(), packing) {
            (&[words, outputs], Packing::Gptq(_)) => (words * WORD, outputs),
            (&[inputs, words], Packing::Awq) => (inputs, words * WORD),
            _ => (0, 0),
        };
        let group = match group {
            QuantGroup::Inputs(size) => size.min(inputs).max(1),
            QuantGroup::Row => inputs.max(1),
        };
        let groups = inputs.div_ceil(group);
        let types: [(&ByteRange, &str, &[Stored], Vec<usize>); 3] = [
            (integers, "qweight", &[Stored::I32, Stored::U32], integers.shape.clone()),
            (scales, "scales", &[Stored::F16, Stored::BF16, Stored::F32], vec![groups, outputs]),
            (zeros, "qzeros", &[Stored::I32, Stored::U32], vec![groups, outputs / WORD]),
        ];
        for (stretch, part, types, expected) in types {
            let tensor = name(part);
            if stretch.shape != expected || !outputs.is_multiple_of(WORD) || inputs == 0 {
                return Err(files.shape_error(stretch, &tensor, expected));
            }
            let supported = "supported: I32 integers and zeros, F16, BF16 and F32 scales";
            files.require_type(stretch, &tensor, types, supported)?;
        }
        let order = files.get(&name("g_idx"));
        Ok(Some(Matrix { integers, scales, zeros, order, packing, inputs, outputs, group }))
    }

    /// Returns the scales and zero points of some rows, without their integers.
    fn scales_and_zeros(
        &self,
        files: &Checkpoint,
        first: usize,
        count: usize,
    ) -> Result<IntegerRows, SourceError> {
        let groups = self.scales.shape[0];
        let bytes = lines(files, self.scales, groups, first..first + count)?;
        // Files have them as `[group][row]`.
        let by_group = scales(self.scales.stored, &bytes);
        let of_rows = || (0..count).flat_map(|row| (0..groups).map(move |group| (row, group)));
        let scales = of_rows().map(|(row, group)| by_group[group * count + row]).collect();
        let span = word_span(first, count);
        let width = span.len().max(1);
        let words = words(files, self.zeros, groups, span)?;
        let more = u8::from(self.packing == Packing::Gptq(StoredZeros::LessOne));
        let zeros = of_rows()
            .map(|(row, group)| self.output(&words[group * width..][..width], first, row) + more);
        let (inputs, group) = (self.inputs, self.group);
        let zeros = zeros.collect();
        Ok(IntegerRows { inputs, group, bits: 4, scales, zeros, q: Vec::new() })
    }

    /// Returns the integer of an output from words that are packed along the outputs and start with
    /// the word of output `first`.
    fn output(&self, words: &[u32], first: usize, row: usize) -> u8 {
        let at = first % WORD + row;
        let place = if self.packing == Packing::Awq { AWQ_PLACES[at % WORD] } else { at % WORD };
        integer(words[at / WORD], place)
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
        Ok(self.scales_and_zeros(files, 0, self.outputs)?.stored_type())
    }

    fn rows(
        &self,
        files: &Checkpoint,
        first: usize,
        count: usize,
    ) -> Result<IntegerRows, SourceError> {
        let rows = self.scales_and_zeros(files, first, count)?;
        let mut q = vec![0u8; count * self.inputs];
        match self.packing {
            Packing::Gptq(_) => {
                let lines = self.inputs / WORD;
                let words = words(files, self.integers, lines, first..first + count)?;
                for (line, words) in words.chunks_exact(count.max(1)).enumerate() {
                    for (row, word) in words.iter().enumerate() {
                        let q = &mut q[row * self.inputs + line * WORD..][..WORD];
                        for (place, q) in q.iter_mut().enumerate() {
                            *q = integer(*word, place);
                        }
                    }
                }
            }
            Packing::Awq => {
                let span = word_span(first, count);
                let width = span.len().max(1);
                let words = words(files, self.integers, self.inputs, span)?;
                for (input, words) in words.chunks_exact(width).enumerate() {
                    for row in 0..count {
                        q[row * self.inputs + input] = self.output(words, first, row);
                    }
                }
            }
        }
        Ok(IntegerRows { q, ..rows })
    }
}

/// Refuses groups of inputs that are not consecutive.
///
/// # Errors
/// Other groups, or a file that ends early.
pub(super) fn check_order(
    files: &Checkpoint,
    order: &ByteRange,
    inputs: usize,
    group: usize,
) -> Result<(), SourceError> {
    let is_list = order.stored == Stored::I32 && order.shape == [inputs];
    let groups = if is_list { words(files, order, 1, 0..inputs)? } else { Vec::new() };
    let in_order = |(input, index): (usize, &u32)| *index as usize == input / group;
    // Files of compressed-tensors may have a list without groups.
    let has_none = groups.iter().all(|index| *index == u32::MAX);
    if is_list && (has_none || groups.iter().enumerate().all(in_order)) {
        return Ok(());
    }
    let reason = "a g_idx tensor orders the inputs of a matrix by activation (desc_act, or \
                  actorder = group), which is not supported; use a checkpoint made without it";
    Err(format_error(files.path(order), reason.to_owned()))
}

/// Returns scales of type F16, BF16 or F32 from their bytes.
pub(super) fn scales(stored: Stored, bytes: &[u8]) -> Vec<f32> {
    let scale = |b: &[u8]| match stored {
        Stored::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
        Stored::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    };
    bytes.chunks_exact(stored.bitsize() / 8).map(scale).collect()
}

fn integer(word: u32, place: usize) -> u8 {
    (word >> (4 * place) & 15) as u8
}

/// Returns the range of the words that contain the given outputs.
fn word_span(first: usize, count: usize) -> Range<usize> {
    first / WORD..(first + count).div_ceil(WORD)
}

/// Returns the elements in `columns` of each line of a tensor with `lines` lines.
fn lines(
    files: &Checkpoint,
    stretch: &ByteRange,
    lines: usize,
    columns: Range<usize>,
) -> Result<Vec<u8>, SourceError> {
    let width = stretch.elements() / lines.max(1);
    let line_bytes = columns.len() * stretch.element_bytes();
    let mut bytes = vec![0u8; lines * line_bytes];
    if columns.len() == width {
        files.read(stretch, 0, &mut bytes)?;
    } else {
        for (line, bytes) in bytes.chunks_exact_mut(line_bytes.max(1)).enumerate() {
            files.read(stretch, line * width + columns.start, bytes)?;
        }
    }
    Ok(bytes)
}

fn words(
    files: &Checkpoint,
    stretch: &ByteRange,
    count: usize,
    columns: Range<usize>,
) -> Result<Vec<u32>, SourceError> {
    let bytes = lines(files, stretch, count, columns)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
}
