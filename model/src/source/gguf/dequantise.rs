//! GGML's tensor types: their blocks, and a row of each as f32.
//!
//! A value is computed in the order GGML uses (scale times integer, then plus minimum, each rounded
//! to f32), so that every reader of the same file computes with the same weights.

use half::{bf16, f16};

use crate::source::StoredType;

/// For error messages.
pub(super) const SUPPORTED: &str = "supported are F32, F16, BF16, Q4_1 and Q8_0";

/// Elements of a block of the quantised types.
const BLOCK: usize = 32;
const Q4_1_BYTES: usize = 2 + 2 + BLOCK / 2;
const Q8_0_BYTES: usize = 2 + BLOCK;

/// The type of a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorType {
    Known(StoredType),
    /// GGML's number of a type that is not read.
    Unsupported(u32),
}

impl TensorType {
    pub(super) fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Known(StoredType::F32),
            1 => Self::Known(StoredType::F16),
            3 => Self::Known(StoredType::Q4_1),
            8 => Self::Known(StoredType::Q8_0),
            30 => Self::Known(StoredType::Bf16),
            other => Self::Unsupported(other),
        }
    }

    /// Elements and bytes of a block, where known.
    pub(super) fn block(self) -> Option<(usize, usize)> {
        match self {
            Self::Known(stored) => Some(block(stored)),
            Self::Unsupported(_) => None,
        }
    }

    /// GGML's name.
    pub(super) fn name(self) -> String {
        match self {
            Self::Known(StoredType::F32) => "F32".to_owned(),
            Self::Known(StoredType::F16) => "F16".to_owned(),
            Self::Known(StoredType::Bf16) => "BF16".to_owned(),
            Self::Known(StoredType::Q4_1) => "Q4_1".to_owned(),
            Self::Known(StoredType::Q8_0) => "Q8_0".to_owned(),
            Self::Unsupported(code) => UNSUPPORTED
                .iter()
                .find(|(known, _)| *known == code)
                .map_or_else(|| format!("type number {code}"), |(_, name)| (*name).to_owned()),
        }
    }
}

/// Names of the types that are not read, so that an error can say them.
const UNSUPPORTED: [(u32, &str); 27] = [
    (2, "Q4_0"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

/// Elements and bytes of a block; 1 element for the plain types.
pub(super) const fn block(stored: StoredType) -> (usize, usize) {
    match stored {
        StoredType::F32 => (1, 4),
        StoredType::F16 | StoredType::Bf16 => (1, 2),
        StoredType::Q4_1 => (BLOCK, Q4_1_BYTES),
        StoredType::Q8_0 => (BLOCK, Q8_0_BYTES),
    }
}

/// Bytes of a row of `elements`, which blocks must divide.
pub(super) const fn row_bytes(stored: StoredType, elements: usize) -> usize {
    let (block_elements, block_bytes) = block(stored);
    elements / block_elements * block_bytes
}

/// A stored row as f32.
///
/// # Panics
/// When `row` is not [`row_bytes`] of `out.len()` long.
pub(super) fn dequantise(stored: StoredType, row: &[u8], out: &mut [f32]) {
    assert_eq!(row.len(), row_bytes(stored, out.len()), "row and output differ in length");
    match stored {
        StoredType::F32 => each(row, out, f32::from_le_bytes),
        StoredType::F16 => each(row, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        StoredType::Bf16 => each(row, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        StoredType::Q4_1 => {
            for (block, out) in row.chunks_exact(Q4_1_BYTES).zip(out.chunks_exact_mut(BLOCK)) {
                q4_1(block, out);
            }
        }
        StoredType::Q8_0 => {
            for (block, out) in row.chunks_exact(Q8_0_BYTES).zip(out.chunks_exact_mut(BLOCK)) {
                q8_0(block, out);
            }
        }
    }
}

fn each<const N: usize>(row: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in row.as_chunks::<N>().0.iter().zip(out) {
        *out = convert(*bytes);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `scale * q + minimum`; byte `i` holds element `i` in its low and `i + 16` in its high half.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let (low, high) = out.split_at_mut(BLOCK / 2);
    for ((byte, low), high) in block[4..].iter().zip(low).zip(high) {
        *low = scale * f32::from(byte & 0x0f) + minimum;
        *high = scale * f32::from(byte >> 4) + minimum;
    }
}

/// `scale * q`.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = scale * f32::from(i8::from_le_bytes([*byte]));
    }
}
