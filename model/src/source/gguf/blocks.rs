//! GGML's types with one scale per block of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, for
//! `dequantise`. Each function expands one block.

use half::f16;

/// Number of elements in a block.
const BLOCK: usize = 32;

/// Returns the f16 at byte `at` of a block.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Expands 16 bytes by `value(element, half)`. Byte `i` contains element `i` in its low half and
/// element `i + 16` in its high half.
pub(super) fn halves(bytes: &[u8], out: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    let (low, high) = out.split_at_mut(BLOCK / 2);
    for (i, ((byte, low), high)) in bytes.iter().zip(low).zip(high).enumerate() {
        *low = value(i, byte & 0x0f);
        *high = value(i + BLOCK / 2, byte >> 4);
    }
}

/// Returns a function for 5-bit integers, which adds bit `i` of the 32 bits at byte `at` of the
/// block to the half of a byte.
fn with_fifth_bit(block: &[u8], at: usize) -> impl Fn(usize, u8) -> f32 {
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    move |i, half| f32::from(half | ((bits >> i & 1) as u8) << 4)
}

/// Expands values `scale * (q - 8)`.
pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    halves(&block[2..], out, |_, q| scale * (f32::from(q) - 8.0));
}

/// Expands values `scale * q + minimum`.
pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    halves(&block[4..], out, |_, q| scale * f32::from(q) + minimum);
}

/// Expands values `scale * (q - 16)`.
pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    let integer = with_fifth_bit(block, 2);
    halves(&block[6..], out, |i, half| scale * (integer(i, half) - 16.0));
}

/// Expands values `scale * q + minimum`.
pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let integer = with_fifth_bit(block, 4);
    halves(&block[8..], out, |i, half| scale * integer(i, half) + minimum);
}

/// Expands values `scale * q`.
pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = scale * f32::from(i8::from_le_bytes([*byte]));
    }
}
