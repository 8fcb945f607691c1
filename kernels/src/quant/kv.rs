//! Quantisation of K and V to 4 bits when they are appended to a cache, and a plain decoder, which
//! is the reference for attention over the cache.

use half::{bf16, f16};
use model::quantized_format::{KV_GROUP, kv4_groups, kv4_position_bytes};

use super::range::{LONGEST, quantise_range};
use crate::number::Number;
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

const _: () = assert!(KV_GROUP <= LONGEST);

/// Quantises positions of heads. `x` is `[positions, head_dim]`; `out` holds one record per
/// position and is overwritten completely. Every element is then within
/// [`error_bound`](super::error_bound) of its decoded value. NaN counts as 0, and a value beyond
/// f16's range, infinities included, as the largest f16 of its sign.
///
/// # Panics
/// Panics if `head_dim` is odd or 0, the lengths do not match, or the machine lacks `variant`.
pub fn quantise_kv<T: Number>(variant: Variant, x: &[T], head_dim: usize, out: &mut [u8]) {
    assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
    let bytes = position_bytes(head_dim);
    assert!(x.len().is_multiple_of(head_dim), "the elements are not whole positions");
    assert_eq!(out.len(), x.len() / head_dim * bytes, "the output has another size");
    // Not generic from here on, so that the code is compiled once and in this crate.
    if T::IS_F32 {
        quantise_f32(variant, Positions { x: bytemuck::cast_slice(x), head_dim, out });
    } else {
        quantise_bf16(variant, Positions { x: bytemuck::cast_slice(x), head_dim, out });
    }
}

#[inline(never)]
fn quantise_f32(variant: Variant, positions: Positions<'_, f32>) {
    // SAFETY: needed to enter code compiled for the variant, which `quantise_kv` found available.
    unsafe { dispatch(variant, positions) }
}

#[inline(never)]
fn quantise_bf16(variant: Variant, positions: Positions<'_, bf16>) {
    // SAFETY: needed to enter code compiled for the variant, which `quantise_kv` found available.
    unsafe { dispatch(variant, positions) }
}

fn position_bytes(head_dim: usize) -> usize {
    let Some(bytes) = kv4_position_bytes(head_dim) else {
        panic!("a 4-bit KV cache cannot hold heads of {head_dim} elements");
    };
    bytes
}

/// Positions to quantise: `x` is `[positions, head_dim]`, and `out` holds their records.
struct Positions<'a, T> {
    x: &'a [T],
    head_dim: usize,
    out: &'a mut [u8],
}

impl<T: Number> SimdTask for Positions<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Positions { x, head_dim, out } = self;
        let groups = kv4_groups(head_dim);
        let records = out.chunks_exact_mut(head_dim / 2 + 4 * groups);
        for (x, record) in x.chunks_exact(head_dim).zip(records) {
            let (integers, ranges) = record.split_at_mut(head_dim / 2);
            let (scales, minimums) = ranges.split_at_mut(2 * groups);
            let targets = integers.chunks_mut(KV_GROUP / 2);
            for (group, (x, target)) in x.chunks(KV_GROUP).zip(targets).enumerate() {
                let mut values = [0.0; LONGEST];
                for (value, x) in values.iter_mut().zip(x) {
                    *value = x.to_f32();
                }
                let range = quantise_range(&mut values, x.len());
                let (low, high) = range.q.split_at(x.len() / 2);
                for ((byte, low), high) in target.iter_mut().zip(low).zip(high) {
                    *byte = low | high << 4;
                }
                scales[2 * group..][..2].copy_from_slice(&range.scale.to_le_bytes());
                minimums[2 * group..][..2].copy_from_slice(&range.minimum.to_le_bytes());
            }
        }
    }
}

/// Decodes the elements of positions from `records`, which are whole positions. `out` is
/// `[positions, head_dim]`.
///
/// # Panics
/// Panics if `head_dim` is odd or 0, or the lengths do not match.
pub fn decode_kv(records: &[u8], head_dim: usize, out: &mut [f32]) {
    let bytes = position_bytes(head_dim);
    assert!(records.len().is_multiple_of(bytes), "the bytes are not whole positions");
    assert_eq!(out.len(), records.len() / bytes * head_dim, "the output has another size");
    let groups = kv4_groups(head_dim);
    for (record, out) in records.chunks_exact(bytes).zip(out.chunks_exact_mut(head_dim)) {
        let (integers, ranges) = record.split_at(head_dim / 2);
        let half =
            |index: usize| f16::from_le_bytes([ranges[2 * index], ranges[2 * index + 1]]).to_f32();
        for (group, out) in out.chunks_mut(KV_GROUP).enumerate() {
            let (scale, minimum) = (half(group), half(groups + group));
            let integers = &integers[group * KV_GROUP / 2..][..out.len() / 2];
            let (low, high) = out.split_at_mut(out.len() / 2);
            for ((byte, low), high) in integers.iter().zip(low).zip(high) {
                *low = scale * f32::from(byte & 15) + minimum;
                *high = scale * f32::from(byte >> 4) + minimum;
            }
        }
    }
}
