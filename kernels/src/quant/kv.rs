//! Quantisation of K and V when they are appended to a cache, and a plain decoder, which is the
//! reference for attention over the cache.

use half::bf16;
use model::quantized_format::KvRecordFormat;

use super::{kv4, kv8};
use crate::number::Number;
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Quantises positions of heads. `x` is `[positions, head_dim]`; `out` holds one record per
/// position and is overwritten completely. Every element is then within
/// [`error_bound`](super::error_bound) of its decoded value in 4 bits, and within half a step of it
/// in 8. NaN counts as 0, and a value beyond f16's range, infinities included, as the largest f16
/// of its sign.
///
/// # Panics
/// Panics if `head_dim` is odd or 0, the lengths do not match, or the machine lacks `variant`.
pub fn quantise_kv<T: Number>(
    variant: Variant,
    format: KvRecordFormat,
    x: &[T],
    head_dim: usize,
    out: &mut [u8],
) {
    assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
    let bytes = position_bytes(format, head_dim);
    assert!(x.len().is_multiple_of(head_dim), "the elements are not whole positions");
    assert_eq!(out.len(), x.len() / head_dim * bytes, "the output has another size");
    // Not generic from here on, so that the code is compiled once and in this crate.
    if T::IS_F32 {
        let x = bytemuck::cast_slice(x);
        quantise_f32(variant, Positions { format, x, head_dim, bytes, out });
    } else {
        let x = bytemuck::cast_slice(x);
        quantise_bf16(variant, Positions { format, x, head_dim, bytes, out });
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

fn position_bytes(format: KvRecordFormat, head_dim: usize) -> usize {
    let Some(bytes) = format.position_bytes(head_dim) else {
        panic!("a {}-bit KV cache cannot hold heads of {head_dim} elements", format.bits());
    };
    bytes
}

/// Positions to quantise: `x` is `[positions, head_dim]`, and `out` holds their records of `bytes`
/// bytes each.
struct Positions<'a, T> {
    format: KvRecordFormat,
    x: &'a [T],
    head_dim: usize,
    bytes: usize,
    out: &'a mut [u8],
}

impl<T: Number> SimdTask for Positions<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Positions { format, x, head_dim, bytes, out } = self;
        for (x, record) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(bytes)) {
            match format {
                KvRecordFormat::Four => kv4::encode_record(x, record),
                KvRecordFormat::Eight => kv8::encode_record(x, record),
            }
        }
    }
}

/// Decodes the elements of positions from `records`, which are whole positions. `out` is
/// `[positions, head_dim]`.
///
/// # Panics
/// Panics if `head_dim` is odd or 0, or the lengths do not match.
pub fn decode_kv(format: KvRecordFormat, records: &[u8], head_dim: usize, out: &mut [f32]) {
    let bytes = position_bytes(format, head_dim);
    assert!(records.len().is_multiple_of(bytes), "the bytes are not whole positions");
    assert_eq!(out.len(), records.len() / bytes * head_dim, "the output has another size");
    for (record, out) in records.chunks_exact(bytes).zip(out.chunks_exact_mut(head_dim)) {
        match format {
            KvRecordFormat::Four => kv4::decode_record(record, out),
            KvRecordFormat::Eight => kv8::decode_record(record, out),
        }
    }
}
