//! Types with blocks of 256 values: fields of the blocks are those that the readers of `model`
//! describe.

use super::fit::Group;
use super::levels::{Integers, NonLinear};
use super::simple::put_halves;
use super::super_block::{AffineBlock, BLOCK, ScaledBlock, encode_affine, encode_scaled};

/// Writes two bits of each code. In each half of the block, element `i` of quarter `t` of 32
/// elements has bits `2t` and `2t + 1` of byte `i` of 32.
fn put_pairs(codes: &[u8; BLOCK], out: &mut [u8]) {
    out.fill(0);
    for (element, code) in codes.iter().enumerate() {
        out[element / 128 * 32 + element % 32] |= (code & 3) << (element % 128 / 32 * 2);
    }
}

/// Writes the low four bits of codes, 64 elements in 32 bytes: the first 32 in low halves.
fn put_nibbles(codes: &[u8; BLOCK], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(64).zip(out.chunks_exact_mut(32)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = codes[i] & 15 | codes[i + 32] << 4;
        }
    }
}

/// Writes eight scales and minimums of six bits in twelve bytes.
fn put_six_bits(scales: &[u8], minimums: &[u8], out: &mut [u8]) {
    for part in 0..4 {
        out[part] = scales[part] | scales[part + 4] >> 4 << 6;
        out[part + 4] = minimums[part] | minimums[part + 4] >> 4 << 6;
        out[part + 8] = scales[part + 4] & 15 | minimums[part + 4] << 4;
    }
}

fn put_factors(block: &AffineBlock, out: &mut [u8]) {
    out[..2].copy_from_slice(&block.scale.to_le_bytes());
    out[2..4].copy_from_slice(&block.minimum.to_le_bytes());
}

pub(super) fn q2_k(block: Group<'_>, out: &mut [u8]) {
    let found = encode_affine(3.0, 16, 15, block);
    for (part, out) in out[..16].iter_mut().enumerate() {
        *out = found.scales[part] | found.minimums[part] << 4;
    }
    put_pairs(&found.codes, &mut out[16..80]);
    put_factors(&found, &mut out[80..]);
}

pub(super) fn q3_k(block: Group<'_>, out: &mut [u8]) {
    let ScaledBlock { scale, scales, codes } = encode_scaled(Integers::<-4, 3>, 16, -32, 31, block);
    out[..32].fill(0);
    for (element, code) in codes.iter().enumerate() {
        out[element % 32] |= (code >> 2) << (element / 32);
    }
    put_pairs(&codes, &mut out[32..96]);
    let packed = &mut out[96..108];
    packed.fill(0);
    for (part, scale) in scales.iter().enumerate() {
        let scale = (scale + 32).cast_unsigned();
        packed[part % 8] |= (scale & 15) << (part / 8 * 4);
        packed[8 + part % 4] |= (scale >> 4) << (part / 4 * 2);
    }
    out[108..110].copy_from_slice(&scale.to_le_bytes());
}

pub(super) fn q4_k(block: Group<'_>, out: &mut [u8]) {
    let found = encode_affine(15.0, 32, 63, block);
    put_factors(&found, out);
    put_six_bits(&found.scales, &found.minimums, &mut out[4..16]);
    put_nibbles(&found.codes, &mut out[16..144]);
}

pub(super) fn q5_k(block: Group<'_>, out: &mut [u8]) {
    let found = encode_affine(31.0, 32, 63, block);
    put_factors(&found, out);
    put_six_bits(&found.scales, &found.minimums, &mut out[4..16]);
    let fifth = &mut out[16..48];
    fifth.fill(0);
    for (element, code) in found.codes.iter().enumerate() {
        fifth[element % 32] |= (code >> 4) << (element / 32);
    }
    put_nibbles(&found.codes, &mut out[48..176]);
}

pub(super) fn q6_k(block: Group<'_>, out: &mut [u8]) {
    let ScaledBlock { scale, scales, codes } =
        encode_scaled(Integers::<-32, 31>, 16, -128, 127, block);
    out[..192].fill(0);
    for (element, code) in codes.iter().enumerate() {
        let (half, quarter, lane) = (element / 128, element % 128 / 32, element % 32);
        out[half * 64 + quarter % 2 * 32 + lane] |= (code & 15) << (quarter / 2 * 4);
        out[128 + half * 32 + lane] |= (code >> 4) << (quarter * 2);
    }
    for (out, scale) in out[192..208].iter_mut().zip(scales) {
        *out = scale.cast_unsigned();
    }
    out[208..210].copy_from_slice(&scale.to_le_bytes());
}

pub(super) fn iq4_xs(block: Group<'_>, out: &mut [u8]) {
    let ScaledBlock { scale, scales, codes } = encode_scaled(NonLinear, 32, -32, 31, block);
    out[..8].fill(0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    let mut upper = 0;
    for (part, scale) in scales[..8].iter().enumerate() {
        let scale = (scale + 32).cast_unsigned();
        out[4 + part / 2] |= (scale & 15) << (part % 2 * 4);
        upper |= u16::from(scale >> 4) << (2 * part);
    }
    out[2..4].copy_from_slice(&upper.to_le_bytes());
    for (codes, out) in codes.chunks_exact(32).zip(out[8..136].chunks_exact_mut(16)) {
        put_halves(codes, out);
    }
}
