//! GGML's types with blocks of 256 elements in parts with their own low-bit scales: Q4_K to Q6_K,
//! for `dequantise`. Each function expands one block.

use super::blocks::half_at;

/// Number of elements in a part of Q4_K and Q5_K.
const PART: usize = 32;

/// Returns scale and minimum of one of 8 parts, of 6 bits each, packed in 12 bytes. Parts 0 to 3
/// have the low six bits of a byte each for scale and minimum. Parts 4 to 7 have the two halves of
/// a byte, and their upper two bits are the upper two bits of the bytes of parts 0 to 3.
fn scale_and_minimum(packed: &[u8], part: usize) -> (f32, f32) {
    let (scale, minimum) = if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        let both = packed[part + 4];
        (both & 15 | packed[part - 4] >> 6 << 4, both >> 4 | packed[part] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// Expands parts in pairs: 32 bytes contain the even part in their low and the odd part in their
/// high halves. `fifth` returns the fifth bit of element `i` of a part, as 0 or 16.
fn parts(head: &[u8], halves: &[u8], out: &mut [f32], fifth: impl Fn(usize, usize) -> u8) {
    let (scale, minimum) = (half_at(head, 0), half_at(head, 2));
    for (part, out) in out.chunks_exact_mut(PART).enumerate() {
        let (part_scale, part_minimum) = scale_and_minimum(&head[4..], part);
        let (step, offset) = (scale * part_scale, minimum * part_minimum);
        let shift = part % 2 * 4;
        for (i, (byte, out)) in halves[part / 2 * PART..][..PART].iter().zip(out).enumerate() {
            let q = byte >> shift & 15 | fifth(part, i);
            *out = step * f32::from(q) - offset;
        }
    }
}

/// Expands a block of an f16 scale, an f16 scale of minimums, 12 bytes of scales and minimums, and
/// 128 bytes of halves.
pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let (head, halves) = block.split_at(16);
    parts(head, halves, out, |_, _| 0);
}

/// Expands a block that differs from Q4_K in 32 bytes before the halves: bit `part` of byte `i` is
/// the fifth bit of element `i` of the part.
pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let (head, rest) = block.split_at(16);
    let (bits, halves) = rest.split_at(32);
    parts(head, halves, out, |part, i| (bits[i] >> part & 1) << 4);
}

/// Expands a block of 128 bytes of low halves, 64 bytes of upper two bits, 16 signed scales and an
/// f16 scale. In each half of the block, quarter `t` of 32 elements has the low (t < 2) or high
/// halves of 32 bytes, and bits `2t` and `2t + 1` of 32 others. 16 elements share a scale.
pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (upper, rest) = rest.split_at(64);
    let (scales, scale) = rest.split_at(16);
    let scale = half_at(scale, 0);
    for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, t) = (quarter / 4, quarter % 4);
        let low = &low[half * 64 + t % 2 * 32..][..32];
        let upper = &upper[half * 32..][..32];
        for (i, out) in out.iter_mut().enumerate() {
            let q = low[i] >> (t / 2 * 4) & 15 | (upper[i] >> (2 * t) & 3) << 4;
            let part_scale = i8::from_le_bytes([scales[quarter * 2 + i / 16]]);
            *out = scale * f32::from(part_scale) * (f32::from(q) - 32.0);
        }
    }
}
