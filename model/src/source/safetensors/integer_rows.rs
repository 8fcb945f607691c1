//! Rows of integers of at most 8 bits with a scale and a zero point per group of inputs: a value is
//! `scale * (q - zero)`.
//!
//! Values are not rounded a second time: `scale * (q - zero)` is exact in f32 if the scale has 16
//! bits. Rows of 4 bits can also be represented as blocks of GGUF's Q4_1 if all products of scales
//! and zero points are exact in f16; otherwise as blocks of Q5_0, whose integers are `q - zero`,
//! from -16 to 15. Rows of 8 bits whose zero points are 128 are blocks of Q8_0.

use half::f16;

use super::files::Checkpoint;
use crate::source::{SourceError, StoredType};

/// Number of elements in a GGUF block.
const BLOCK: usize = 32;

/// Zero point of symmetric integers of 8 bits.
const MIDDLE: u8 = 128;

/// A matrix of packed integers with scales and zero points.
pub(super) trait IntegerMatrix {
    /// Returns the numbers of outputs and inputs.
    fn shape(&self) -> (usize, usize);

    /// Returns the GGUF type whose blocks represent the matrix without loss; F32 if there is none.
    /// Reads all scales and zero points.
    ///
    /// # Errors
    /// Groups of inputs that are not consecutive, or a file that ends early.
    fn stored_type(&self, files: &Checkpoint) -> Result<StoredType, SourceError>;

    /// Reads `count` rows from `first` on.
    ///
    /// # Errors
    /// A file that ends early.
    fn rows(
        &self,
        files: &Checkpoint,
        first: usize,
        count: usize,
    ) -> Result<IntegerRows, SourceError>;

    /// Reads the values of rows, starting at `first_row`.
    ///
    /// # Errors
    /// A file that ends early.
    fn read(
        &self,
        files: &Checkpoint,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        self.rows(files, first_row, out.len() / self.shape().1)?.expand(out);
        Ok(())
    }

    /// Reads rows, starting at `first_row`, as blocks of `stored`, the result of
    /// [`IntegerMatrix::stored_type`].
    ///
    /// # Errors
    /// A file that ends early.
    fn read_blocks(
        &self,
        files: &Checkpoint,
        stored: StoredType,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let count = out.len() / stored.row_bytes(self.shape().1);
        self.rows(files, first_row, count)?.write_blocks(stored, out);
        Ok(())
    }
}

/// Rows of a matrix, or their scales and zero points alone.
#[derive(Debug, Default)]
pub(super) struct IntegerRows {
    pub(super) inputs: usize,
    /// Number of inputs that share a scale.
    pub(super) group: usize,
    pub(super) bits: u32,
    /// Integers, as `[row][input]`.
    pub(super) q: Vec<u8>,
    /// Scales, as `[row][group]`. `zeros` has the same layout.
    pub(super) scales: Vec<f32>,
    pub(super) zeros: Vec<u8>,
}

impl IntegerRows {
    pub(super) fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    /// Returns the GGUF type whose blocks represent rows with these scales and zero points without
    /// loss; F32 if there is none. The integers are not needed.
    pub(super) fn stored_type(&self) -> StoredType {
        let is_cut = !self.group.is_multiple_of(BLOCK) || !self.inputs.is_multiple_of(BLOCK);
        if is_cut || !self.scales.iter().all(|scale| is_half(*scale)) {
            return StoredType::F32;
        }
        if self.bits == 8 {
            let is_symmetric = self.zeros.iter().all(|zero| *zero == MIDDLE);
            return if is_symmetric { StoredType::Q8_0 } else { StoredType::F32 };
        }
        let mut products =
            self.scales.iter().zip(&self.zeros).map(|(scale, zero)| minimum(*scale, *zero));
        if products.all(is_half) { StoredType::Q4_1 } else { StoredType::Q5_0 }
    }

    /// Returns true if f16 does not hold a scale of the row.
    pub(super) fn has_other_scales(&self, row: usize) -> bool {
        let groups = self.groups();
        self.scales[row * groups..][..groups].iter().any(|scale| !is_half(*scale))
    }

    /// Replaces scales that f16 does not hold by 0 if all values of their groups are 0.
    pub(super) fn clear_unused_scales(&mut self) {
        let groups = self.groups();
        for (index, scale) in self.scales.iter_mut().enumerate().filter(|(_, s)| !is_half(**s)) {
            let (row, first) = (index / groups, index % groups * self.group);
            let last = (first + self.group).min(self.inputs);
            let q = &self.q[row * self.inputs..][first..last];
            if q.iter().all(|q| *q == self.zeros[index]) {
                *scale = 0.0;
            }
        }
    }

    /// Writes the values of all rows.
    pub(super) fn expand(&self, out: &mut [f32]) {
        for (row, out) in out.chunks_exact_mut(self.inputs).enumerate() {
            let q = self.q[row * self.inputs..][..self.inputs].chunks(self.group);
            for (group, (q, out)) in q.zip(out.chunks_mut(self.group)).enumerate() {
                let (scale, zero) = self.scale_and_zero(row, group);
                for (q, out) in q.iter().zip(out) {
                    *out = scale * (f32::from(*q) - f32::from(zero));
                }
            }
        }
    }

    /// Writes all rows as blocks of `stored`, a type of which [`IntegerRows::stored_type`] is a
    /// special case.
    pub(super) fn write_blocks(&self, stored: StoredType, out: &mut [u8]) {
        let (_, block_bytes) = stored.block();
        let row_bytes = stored.row_bytes(self.inputs);
        for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let q = self.q[row * self.inputs..][..self.inputs].as_chunks::<BLOCK>().0;
            for (index, (q, out)) in q.iter().zip(out.chunks_exact_mut(block_bytes)).enumerate() {
                let (scale, zero) = self.scale_and_zero(row, index * BLOCK / self.group);
                out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                match stored {
                    StoredType::Q4_1 => {
                        let minimum = f16::from_f32(minimum(scale, zero));
                        out[2..4].copy_from_slice(&minimum.to_le_bytes());
                        put_halves(&mut out[4..], q);
                    }
                    // An offset of 128 is a change of the sign bit.
                    StoredType::Q8_0 => out[2..].copy_from_slice(&q.map(|q| q ^ MIDDLE)),
                    _ => put_q5_0(out, &q.map(|q| q + 16 - zero)),
                }
            }
        }
    }

    /// Returns the scale and the zero point of a group of a row.
    fn scale_and_zero(&self, row: usize, group: usize) -> (f32, u8) {
        let at = row * self.groups() + group;
        (self.scales[at], self.zeros[at])
    }
}

fn is_half(value: f32) -> bool {
    let half = f16::from_f32(value);
    half.is_finite() && half.to_f32() == value
}

/// Returns the value that corresponds to the integer 0.
fn minimum(scale: f32, zero: u8) -> f32 {
    -scale * f32::from(zero)
}

/// Writes the lower four bits of integers: those of the first 16 in a block to the low halves of
/// bytes, the others to the high halves.
fn put_halves(out: &mut [u8], q: &[u8; BLOCK]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = q[i] & 15 | q[i + BLOCK / 2] << 4;
    }
}

/// Writes the integers of a Q5_0 block, after its scale.
fn put_q5_0(out: &mut [u8], q: &[u8; BLOCK]) {
    let fifth = (0..BLOCK).fold(0u32, |bits, i| bits | u32::from(q[i] >> 4) << i);
    out[2..6].copy_from_slice(&fifth.to_le_bytes());
    put_halves(&mut out[6..], q);
}
