//! Quantisation of rows of a weight matrix to records, at load.

use half::bf16;
use model::quantized_format::{Bits, Grouped, ROWS, ScaleLayout};

use super::nearest::quantise_nearest;
use super::range::{LONGEST, quantise_range};
use super::record::{set_scale_and_minimum, store};
use crate::number::Number;
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Quantises rows of `k` weights to 4 bits. `weights` is `[rows, k]`; `out` has
/// `format.size_bytes(rows, k)` bytes and is overwritten completely. A matrix can be passed in
/// pieces of whole blocks of 16 rows. Every weight is then within
/// [`error_bound`](super::error_bound) of its decoded value. NaN counts as 0, and a value beyond
/// f16's range, infinities included, as the largest f16 of its sign.
///
/// An 8-bit format stores the same integers, one per byte. Only random weights that replace those
/// of an 8-bit file are quantised to it. Random weights are quantised to the formats of GGUF's
/// other types as well, to the nearest integers.
///
/// # Panics
/// Panics if the groups of `format` are not multiples of 8 of at most 64 inputs, if `format` is
/// used only on devices, if the lengths do not match, or if the machine lacks `variant`.
pub fn quantise<T: Number>(
    variant: Variant,
    format: Grouped,
    weights: &[T],
    k: usize,
    out: &mut [u8],
) {
    assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
    assert!(
        format.group.is_multiple_of(8) && (8..=LONGEST).contains(&format.group),
        "{format:?} is no format to quantise to"
    );
    assert!(k > 0 && weights.len().is_multiple_of(k), "the weights are not whole rows");
    assert_eq!(out.len(), format.size_bytes(weights.len() / k, k), "the output has another size");
    let ranges =
        format.scales == ScaleLayout::Halves && matches!(format.bits, Bits::Four | Bits::Eight);
    if !ranges {
        let rows = weights.len() / k;
        quantise_nearest(format, &|at| weights[at].to_f32(), rows, k, out);
        return;
    }
    // Not generic from here on, so that the code is compiled once and in this crate.
    if T::IS_F32 {
        quantise_f32(variant, Rows { format, weights: bytemuck::cast_slice(weights), k, out });
    } else {
        quantise_bf16(variant, Rows { format, weights: bytemuck::cast_slice(weights), k, out });
    }
}

#[inline(never)]
fn quantise_f32(variant: Variant, rows: Rows<'_, f32>) {
    // SAFETY: needed to enter code compiled for the variant, which `quantise` found available.
    unsafe { dispatch(variant, rows) }
}

#[inline(never)]
fn quantise_bf16(variant: Variant, rows: Rows<'_, bf16>) {
    // SAFETY: needed to enter code compiled for the variant, which `quantise` found available.
    unsafe { dispatch(variant, rows) }
}

/// Rows to quantise: `weights` is `[rows, k]`, and `out` holds their records.
struct Rows<'a, T> {
    format: Grouped,
    weights: &'a [T],
    k: usize,
    out: &'a mut [u8],
}

impl<T: Number> SimdTask for Rows<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Rows { format, weights, k, out } = self;
        let blocks = out.chunks_exact_mut(format.block_bytes(k));
        for (weights, out) in weights.chunks(ROWS * k).zip(blocks) {
            for (group, record) in out.chunks_exact_mut(format.record_bytes()).enumerate() {
                let first = group * format.group;
                let count = format.group.min(k - first);
                if weights.len() < ROWS * k {
                    record.fill(0);
                }
                for (row, weights) in weights.chunks_exact(k).enumerate() {
                    let mut values = [0.0; LONGEST];
                    for (value, weight) in values.iter_mut().zip(&weights[first..first + count]) {
                        *value = weight.to_f32();
                    }
                    let range = quantise_range(&mut values, count);
                    set_scale_and_minimum(record, row, range.scale, range.minimum);
                    store(format, record, row, 0, &range.q[..format.group]);
                }
            }
        }
    }
}
