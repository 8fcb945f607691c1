//! Types with one f16 scale, and possibly a minimum, for each 32 values.

use super::fit::{Group, fit_affine, fit_scale};
use super::levels::{Integers, Levels, NonLinear, inverse};
use super::super_block::to_half;

/// Number of values in a block.
const BLOCK: usize = 32;

/// Writes the low four bits of codes. Byte `i` contains code `i` in its low half and code `i + 16`
/// in its high half.
pub(super) fn put_halves(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(BLOCK / 2);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}

/// Returns bit 4 of each code as a word.
fn fifth_bits(codes: &[u8; BLOCK]) -> [u8; 4] {
    let bits = codes.iter().enumerate().map(|(i, code)| u32::from(code >> 4 & 1) << i);
    bits.fold(0, |word, bit| word | bit).to_le_bytes()
}

/// Encodes an int8 for each value, as GGML does: the largest magnitude becomes 127.
pub(super) fn q8_0(block: Group<'_>, out: &mut [u8]) {
    let scale = block.extreme().abs() / 127.0;
    let inverse = inverse(scale);
    out[..2].copy_from_slice(&to_half(scale).to_le_bytes());
    for (out, value) in out[2..].iter_mut().zip(block.values) {
        *out = ((value * inverse).round() as i8).cast_unsigned();
    }
}

/// Encodes 4-bit integers as GGML does: the value of the largest magnitude becomes -8.
pub(super) fn q4_0_plain(block: Group<'_>, out: &mut [u8]) {
    let scale = block.extreme() / -8.0;
    let inverse = inverse(scale);
    let mut codes = [0; BLOCK];
    for (code, value) in codes.iter_mut().zip(block.values) {
        *code = (value * inverse + 8.5).clamp(0.0, 15.0) as u8;
    }
    out[..2].copy_from_slice(&to_half(scale).to_le_bytes());
    put_halves(&codes, &mut out[2..]);
}

/// Returns the f16 scale of a block in bytes, and the codes of its values.
fn scaled<L: Levels>(levels: L, block: Group<'_>) -> ([u8; 2], [u8; BLOCK]) {
    let scale = to_half(fit_scale(levels, block));
    let inverse = inverse(scale.to_f32());
    let mut codes = [0; BLOCK];
    for (code, value) in codes.iter_mut().zip(block.values) {
        *code = levels.code(levels.nearest(value * inverse));
    }
    (scale.to_le_bytes(), codes)
}

/// Encodes 4-bit integers with the scale of the smallest error.
pub(super) fn q4_0(block: Group<'_>, out: &mut [u8]) {
    let (scale, codes) = scaled(Integers::<-8, 7>, block);
    out[..2].copy_from_slice(&scale);
    put_halves(&codes, &mut out[2..]);
}

pub(super) fn q5_0(block: Group<'_>, out: &mut [u8]) {
    let (scale, codes) = scaled(Integers::<-16, 15>, block);
    out[..2].copy_from_slice(&scale);
    out[2..6].copy_from_slice(&fifth_bits(&codes));
    put_halves(&codes, &mut out[6..]);
}

pub(super) fn iq4_nl(block: Group<'_>, out: &mut [u8]) {
    let (scale, codes) = scaled(NonLinear, block);
    out[..2].copy_from_slice(&scale);
    put_halves(&codes, &mut out[2..]);
}

/// Returns scale and minimum of a block in bytes, and the codes from 0 to `highest` of its values.
fn affine(highest: f32, block: Group<'_>) -> ([u8; 4], [u8; BLOCK]) {
    let mut factors = fit_affine(highest, true, block);
    let (scale, minimum) = (to_half(factors.scale), to_half(factors.minimum));
    (factors.scale, factors.minimum) = (scale.to_f32(), minimum.to_f32());
    let mut codes = [0; BLOCK];
    for (code, value) in codes.iter_mut().zip(block.values) {
        *code = factors.level(highest, *value) as u8;
    }
    let ([a, b], [c, d]) = (scale.to_le_bytes(), minimum.to_le_bytes());
    ([a, b, c, d], codes)
}

pub(super) fn q4_1(block: Group<'_>, out: &mut [u8]) {
    let (factors, codes) = affine(15.0, block);
    out[..4].copy_from_slice(&factors);
    put_halves(&codes, &mut out[4..]);
}

pub(super) fn q5_1(block: Group<'_>, out: &mut [u8]) {
    let (factors, codes) = affine(31.0, block);
    out[..4].copy_from_slice(&factors);
    out[4..8].copy_from_slice(&fifth_bits(&codes));
    put_halves(&codes, &mut out[8..]);
}
