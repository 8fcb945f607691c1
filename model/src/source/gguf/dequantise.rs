//! GGML's tensor types: their numbers in a file, and the expansion of rows to f32.
//!
//! Values are computed in the order of GGML (the product of scale and integer, then the sum with
//! the minimum, each rounded to f32), so that every reader of a file computes with identical
//! weights. Products of a scale and an integer are exact in f32, so only the last step rounds.

use half::{bf16, f16};

use super::{blocks, k_quants, tables};
use crate::source::StoredType;
use crate::source::float8::e4m3;
use crate::source::low_bit::LowBitBlock;

/// List of the supported types, for error messages.
pub(super) const SUPPORTED: &str = "supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, \
     Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0 and MXFP4; use a file of the model that is \
     quantised to one of these, such as Q4_K_M or IQ4_XS";

/// Type of a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorType {
    Known(StoredType),
    /// GGML's number of a type that is not supported.
    Unsupported(u32),
}

/// GGML's numbers of the supported types.
const KNOWN: [(u32, StoredType); 25] = [
    (0, StoredType::F32),
    (1, StoredType::F16),
    (2, StoredType::Q4_0),
    (3, StoredType::Q4_1),
    (6, StoredType::Q5_0),
    (7, StoredType::Q5_1),
    (8, StoredType::Q8_0),
    (10, StoredType::Q2K),
    (11, StoredType::Q3K),
    (12, StoredType::Q4K),
    (13, StoredType::Q5K),
    (14, StoredType::Q6K),
    (16, StoredType::Iq2Xxs),
    (17, StoredType::Iq2Xs),
    (18, StoredType::Iq3Xxs),
    (19, StoredType::Iq1S),
    (20, StoredType::Iq4Nl),
    (21, StoredType::Iq3S),
    (22, StoredType::Iq2S),
    (23, StoredType::Iq4Xs),
    (29, StoredType::Iq1M),
    (30, StoredType::Bf16),
    (34, StoredType::Tq1),
    (35, StoredType::Tq2),
    (39, StoredType::Mxfp4),
];

/// Names of unsupported types, for error messages.
const UNSUPPORTED: [(u32, &str); 9] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// Returns GGML's number of a type; `None` for a type of other formats.
pub fn type_code(stored: StoredType) -> Option<u32> {
    KNOWN.iter().find(|(_, known)| *known == stored).map(|(code, _)| *code)
}

impl TensorType {
    pub(super) fn from_code(code: u32) -> Self {
        let known = KNOWN.iter().find(|(known, _)| *known == code);
        known.map_or(Self::Unsupported(code), |(_, stored)| Self::Known(*stored))
    }

    /// Returns the number of elements and bytes of a block if they are known.
    pub(super) fn block(self) -> Option<(usize, usize)> {
        match self {
            Self::Known(stored) => Some(stored.block()),
            Self::Unsupported(_) => None,
        }
    }

    /// Returns GGML's name of the type.
    pub(super) fn name(self) -> String {
        match self {
            Self::Known(stored) => stored.name().to_owned(),
            Self::Unsupported(code) => UNSUPPORTED
                .iter()
                .find(|(known, _)| *known == code)
                .map_or_else(|| format!("type number {code}"), |(_, name)| (*name).to_owned()),
        }
    }
}

/// Expands a stored row to f32. Factors in separate tensors are not applied.
///
/// # Panics
/// If the length of `row` is not [`StoredType::row_bytes`] of `out.len()`.
pub fn dequantise(stored: StoredType, row: &[u8], out: &mut [f32]) {
    assert_eq!(row.len(), stored.row_bytes(out.len()), "row and output differ in length");
    let expand: fn(&[u8], &mut [f32]) = match stored {
        StoredType::F32 => return each(row, out, f32::from_le_bytes),
        StoredType::F16 => return each(row, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        StoredType::Bf16 => return each(row, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        StoredType::F8E4M3 => return each(row, out, |[byte]| e4m3(byte)),
        StoredType::Q4_0 => blocks::q4_0,
        StoredType::Q4_1 => blocks::q4_1,
        StoredType::Q5_0 => blocks::q5_0,
        StoredType::Q5_1 => blocks::q5_1,
        StoredType::Q8_0 => blocks::q8_0,
        StoredType::Q4K => k_quants::q4_k,
        StoredType::Q5K => k_quants::q5_k,
        StoredType::Q6K => k_quants::q6_k,
        StoredType::Iq4Nl => tables::iq4_nl,
        StoredType::Iq4Xs => tables::iq4_xs,
        StoredType::Mxfp4 => tables::mxfp4,
        StoredType::Nvfp4 => tables::nvfp4,
        StoredType::Q2K
        | StoredType::Q3K
        | StoredType::Iq2Xxs
        | StoredType::Iq2Xs
        | StoredType::Iq2S
        | StoredType::Iq3Xxs
        | StoredType::Iq3S
        | StoredType::Iq1S
        | StoredType::Iq1M
        | StoredType::Tq1
        | StoredType::Tq2 => {
            return each_block(stored, row, out, |block, out| {
                LowBitBlock::expand(stored, block, out);
            });
        }
    };
    each_block(stored, row, out, expand);
}

fn each_block(stored: StoredType, row: &[u8], out: &mut [f32], expand: impl Fn(&[u8], &mut [f32])) {
    let (elements, bytes) = stored.block();
    for (block, out) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(elements)) {
        expand(block, out);
    }
}

fn each<const N: usize>(row: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in row.as_chunks::<N>().0.iter().zip(out) {
        *out = convert(*bytes);
    }
}
