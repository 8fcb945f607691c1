//! GGML's types with 4-bit indices into a table: IQ4_NL, IQ4_XS and MXFP4, for `dequantise`, and
//! NVFP4 of safetensors files. Each function expands one block.

use super::blocks::half_at;
use crate::quantized_format::Codebook;
use crate::source::float8::e4m3;

/// Number of elements that share a scale.
const PART: usize = 32;

/// Expands 16 bytes. Byte `i` contains element `i` in its low half and element `i + 16` in its high
/// half.
fn part(scale: f32, table: Codebook, bytes: &[u8], out: &mut [f32]) {
    let values = table.values();
    let (low, high) = out.split_at_mut(PART / 2);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = scale * f32::from(values[usize::from(byte & 15)]);
        *high = scale * f32::from(values[usize::from(byte >> 4)]);
    }
}

/// Expands a block of an f16 scale and 16 bytes of halves.
pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    part(half_at(block, 0), Codebook::NonLinear, &block[2..], out);
}

/// Expands a block of an f16 scale, a word with the upper two bits of eight 6-bit scales, four
/// bytes with their lower four bits, and 16 bytes of halves for each part. Scales of parts have an
/// offset of 32.
pub(super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    let parts = out.chunks_exact_mut(PART).zip(block[8..].chunks_exact(PART / 2));
    for (index, (out, bytes)) in parts.enumerate() {
        let low = i32::from(block[4 + index / 2] >> (index % 2 * 4) & 15);
        let part_scale = (low | i32::from(upper >> (2 * index) & 3) << 4) - 32;
        part(scale * part_scale as f32, Codebook::NonLinear, bytes, out);
    }
}

/// Expands a block of a byte `e` and 16 bytes of halves. The scale of the table's values, which are
/// doubled, is `2^(e - 128)`.
pub(super) fn mxfp4(block: &[u8], out: &mut [f32]) {
    // Exact, even below the smallest normal number.
    let scale = 2f64.powi(i32::from(block[0]) - 128) as f32;
    part(scale, Codebook::E2M1, &block[1..], out);
}

/// Expands a block of an f32 factor, an 8-bit float and 8 bytes of pairs, the first of each in the
/// low half.
pub(super) fn nvfp4(block: &[u8], out: &mut [f32]) {
    let factor = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    let (scale, values) = (factor * e4m3(block[4]), Codebook::E2M1.values());
    for (byte, pair) in block[5..].iter().zip(out.chunks_exact_mut(2)) {
        pair[0] = scale * f32::from(values[usize::from(byte & 15)]);
        pair[1] = scale * f32::from(values[usize::from(byte >> 4)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_4_bit_floats_have_an_8_bit_factor() {
        // The factor is 0.25; 0x40 is 2, and values of the table are doubled.
        let block = [0, 0, 0x80, 0x3e, 0x40, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
        let mut out = [f32::NAN; 16];
        nvfp4(&block, &mut out);
        let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(out[..8], positive);
        assert_eq!(out[8..], positive.map(|value| -value));
    }
}
