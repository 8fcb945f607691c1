//! GGML's types whose 4 bits are places in a table of values: IQ4_NL, IQ4_XS and MXFP4, for
//! `dequantise`. Each function expands one block.

use super::blocks::{half_at, halves};

/// The values of IQ4_NL and IQ4_XS, denser around zero.
const NON_LINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of a 4-bit float (sign, two bits of exponent, one of mantissa); its negative
/// zero is a plain one here.
const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Elements of a part of IQ4_XS, and the bytes that hold them.
const PART: usize = 32;
const PART_BYTES: usize = PART / 2;

/// f16 scale, 16 bytes of halves.
pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    halves(&block[2..], out, |_, q| scale * f32::from(NON_LINEAR[usize::from(q)]));
}

/// f16 scale, upper two bits of 8 parts' scales in a u16, their low halves in 4 bytes, 128 bytes of
/// halves. A part's scale counts from -32.
pub(super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    let (low, bytes) = block[4..].split_at(4);
    let parts = bytes.chunks_exact(PART_BYTES).zip(out.chunks_exact_mut(PART));
    for (part, (bytes, out)) in parts.enumerate() {
        let low = low[part / 2] >> (part % 2 * 4) & 15;
        let upper = (upper >> (2 * part) & 3) as u8;
        let step = scale * (f32::from(low | upper << 4) - 32.0);
        halves(bytes, out, |_, q| step * f32::from(NON_LINEAR[usize::from(q)]));
    }
}

/// An exponent of 8 bits, 16 bytes of halves: 4-bit floats times `2 ^ (exponent - 127)`.
pub(super) fn mxfp4(block: &[u8], out: &mut [f32]) {
    let step = half_of_power(block[0]);
    halves(&block[1..], out, |_, q| step * f32::from(TWICE_E2M1[usize::from(q)]));
}

/// `2 ^ (exponent - 128)`, below exponent 2 a subnormal.
fn half_of_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (u32::from(exponent) - 1) << 23,
    })
}
