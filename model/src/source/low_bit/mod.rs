//! GGUF's types with fewer than four bits for a value: Q2_K, Q3_K, TQ1_0, TQ2_0 and the IQ types
//! with grids. A block of 256 elements is decoded to entries of a [`Codebook`] and the scales of
//! its parts, from which values are computed and records for kernels are made.

mod grids;

use half::f16;

use self::grids::Grid;
use super::StoredType;
use crate::quantized_format::{Bits, Codebook, Grouped, SUPER_BLOCK};

/// Maximum number of parts of a block.
const PARTS: usize = 16;

/// A decoded block. With `unit` of the type's format, element `e` of part `p` is `scale * unit *
/// scales[p] * table[codes[e]] + minimum * minimums[p]`. A part is a group of the format.
#[derive(Debug, Clone, PartialEq)]
pub struct LowBitBlock {
    pub scale: f16,
    pub minimum: f16,
    pub scales: [i8; PARTS],
    pub minimums: [i8; PARTS],
    /// Indices of the table.
    pub codes: [u8; SUPER_BLOCK],
}

/// Returns the table and the format of a type of this module.
fn format(stored: StoredType) -> Option<(Codebook, Grouped)> {
    let format = stored.grouped()?;
    match format.bits {
        Bits::Table(table) => Some((table, format)),
        _ => None,
    }
}

impl LowBitBlock {
    /// Decodes a block; `None` if the type is none of this module's.
    ///
    /// # Panics
    /// Panics if `block` is not a block of the type.
    pub fn decode(stored: StoredType, block: &[u8]) -> Option<LowBitBlock> {
        let decode: fn(&[u8], &mut LowBitBlock) = match stored {
            StoredType::Q2K => q2_k,
            StoredType::Q3K => q3_k,
            StoredType::Iq2Xxs => iq2_xxs,
            StoredType::Iq2Xs => iq2_xs,
            StoredType::Iq2S => iq2_s,
            StoredType::Iq3Xxs => iq3_xxs,
            StoredType::Iq3S => iq3_s,
            StoredType::Iq1S => iq1_s,
            StoredType::Iq1M => iq1_m,
            StoredType::Tq1 => tq1_0,
            StoredType::Tq2 => tq2_0,
            _ => return None,
        };
        assert_eq!(block.len(), stored.block().1, "not a block of {}", stored.name());
        let mut decoded = LowBitBlock {
            scale: f16::ZERO,
            minimum: f16::ZERO,
            scales: [1; PARTS],
            minimums: [0; PARTS],
            codes: [0; SUPER_BLOCK],
        };
        decode(block, &mut decoded);
        Some(decoded)
    }

    /// Writes the values of a block of type `stored` to `out`.
    ///
    /// # Panics
    /// Panics under the conditions of [`LowBitBlock::decode`], or if the type is none of this
    /// module's.
    pub(super) fn expand(stored: StoredType, block: &[u8], out: &mut [f32]) {
        let (Some(decoded), Some((table, format))) =
            (LowBitBlock::decode(stored, block), format(stored))
        else {
            unreachable!("{} has four bits or more", stored.name());
        };
        let values = table.values();
        let has_minimums = format.scales.has_minimums();
        let (scale, minimum) = (decoded.scale.to_f32() * table.unit(), decoded.minimum.to_f32());
        let parts = out.chunks_exact_mut(format.group).zip(decoded.codes.chunks(format.group));
        for (part, (out, codes)) in parts.enumerate() {
            // Products of a scale and an integer are exact; only the sum with a minimum rounds.
            let step = scale * f32::from(decoded.scales[part]);
            let offset = minimum * f32::from(decoded.minimums[part]);
            for (out, code) in out.iter_mut().zip(codes) {
                let product = step * f32::from(values[usize::from(*code)]);
                *out = if has_minimums { product + offset } else { product };
            }
        }
    }

    /// Sets the codes of elements from `first` on to an entry of a grid, of `count` elements. Bit
    /// `i` of `signs`, which says that element `i` is negative or lowered, is the code's highest.
    fn set_entry(&mut self, first: usize, count: usize, grid: Grid, index: usize, signs: u8) {
        let places = grid.entry(index).take(count).enumerate();
        for (code, (i, place)) in self.codes[first..first + count].iter_mut().zip(places) {
            *code = place | (signs >> i & 1) << grid.bits();
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

fn word_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn dword_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Returns a half of a byte, the low one for an even index.
fn half_byte(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (index % 2 * 4) & 15
}

/// Returns `2 * bits + 1` as a scale: scales of the IQ types are odd multiples of half a step.
fn odd(bits: u8) -> i8 {
    (2 * bits + 1).cast_signed()
}

/// Returns eight signs, of which seven are stored: the number of negative ones is even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// Returns the two bits of an element. In each half of the block, element `i` of quarter `t` of 32
/// elements has bits `2t` and `2t + 1` of byte `i` of 32.
fn two_bits(bytes: &[u8], element: usize) -> u8 {
    bytes[element / 128 * 32 + element % 32] >> (element % 128 / 32 * 2) & 3
}

/// 16 bytes with scale and minimum of a part in one half each, 64 bytes of two bits, an f16 scale
/// and an f16 scale of minimums, which are subtracted.
fn q2_k(block: &[u8], to: &mut LowBitBlock) {
    (to.scale, to.minimum) = (half_at(block, 80), half_at(block, 82));
    for (part, packed) in block[..16].iter().enumerate() {
        to.scales[part] = (packed & 15).cast_signed();
        to.minimums[part] = -(packed >> 4).cast_signed();
    }
    for (element, code) in to.codes.iter_mut().enumerate() {
        *code = two_bits(&block[16..80], element);
    }
}

/// 32 bytes of third bits, 64 bytes of two bits, 12 bytes of scales and an f16 scale. If bit `t` of
/// byte `i` is 0, 4 is subtracted from element `i` of the `t`-th 32 elements. Scales have an offset
/// of 32. The low four bits of the 16 parts' scales are in the halves of the first 8 bytes, the
/// upper two bits in the quarters of the last 4.
fn q3_k(block: &[u8], to: &mut LowBitBlock) {
    let (third, scales) = (&block[..32], &block[96..108]);
    to.scale = half_at(block, 108);
    for (part, scale) in to.scales.iter_mut().enumerate() {
        let low = scales[part % 8] >> (part / 8 * 4) & 15;
        let upper = scales[8 + part % 4] >> (part / 4 * 2) & 3;
        *scale = (low | upper << 4).cast_signed() - 32;
    }
    for (element, code) in to.codes.iter_mut().enumerate() {
        let above = third[element % 32] >> (element / 32) & 1;
        *code = two_bits(&block[32..96], element) | above << 2;
    }
}

/// An f16 scale and, for each part of 32 elements, four bytes with an index each, and 32 bits:
/// seven signs for each index and a scale of four bits.
fn iq2_xxs(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 0);
    for (part, packed) in block[2..].chunks_exact(8).enumerate() {
        let rest = dword_at(packed, 4);
        to.scales[part] = odd((rest >> 28) as u8);
        for (i, index) in packed[..4].iter().enumerate() {
            let signs = even_signs(rest >> (7 * i));
            to.set_entry(part * 32 + 8 * i, 8, Grid::IQ2_XXS, usize::from(*index), signs);
        }
    }
}

/// An f16 scale, 32 words with nine bits of index and seven signs, and a half byte of scale for
/// each 16 elements.
fn iq2_xs(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 0);
    for (part, scale) in to.scales.iter_mut().enumerate() {
        *scale = odd(half_byte(&block[66..], part));
    }
    for i in 0..32 {
        let word = word_at(block, 2 + 2 * i);
        let (index, signs) = (usize::from(word & 511), even_signs(u32::from(word >> 9)));
        to.set_entry(8 * i, 8, Grid::IQ2_XS, index, signs);
    }
}

/// An f16 scale, 32 bytes with the low eight bits of an index, 32 bytes of signs, 8 bytes with the
/// upper two bits of four indices, and a half byte of scale for each 16 elements.
fn iq2_s(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 0);
    for (part, scale) in to.scales.iter_mut().enumerate() {
        *scale = odd(half_byte(&block[74..], part));
    }
    for i in 0..32 {
        let upper = block[66 + i / 4] >> (i % 4 * 2) & 3;
        let index = usize::from(block[2 + i]) | usize::from(upper) << 8;
        to.set_entry(8 * i, 8, Grid::IQ2_S, index, block[34 + i]);
    }
}

/// An f16 scale, 64 bytes with an index for four elements each, and for each part of 32 elements 32
/// bits: seven signs for each eight elements and a scale of four bits.
fn iq3_xxs(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 0);
    for part in 0..8 {
        let rest = dword_at(block, 66 + 4 * part);
        to.scales[part] = odd((rest >> 28) as u8);
        for i in 0..8 {
            let signs = even_signs(rest >> (7 * (i / 2))) >> (i % 2 * 4);
            let index = usize::from(block[2 + 8 * part + i]);
            to.set_entry(32 * part + 4 * i, 4, Grid::IQ3_XXS, index, signs);
        }
    }
}

/// An f16 scale, 64 bytes with the low eight bits of an index for four elements, 8 bytes with the
/// ninth bits, 32 bytes of signs, and a half byte of scale for each 32 elements.
fn iq3_s(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 0);
    for part in 0..8 {
        to.scales[part] = odd(half_byte(&block[106..], part));
    }
    for i in 0..64 {
        let ninth = block[66 + i / 8] >> (i % 8) & 1;
        let index = usize::from(block[2 + i]) | usize::from(ninth) << 8;
        let signs = block[74 + i / 2] >> (i % 2 * 4);
        to.set_entry(4 * i, 4, Grid::IQ3_S, index, signs);
    }
}

/// An f16 scale, 32 bytes with the low eight bits of an index, and for each part of 32 elements a
/// word: three bits above each of four indices, a scale of three bits, and whether the part is
/// lowered by an eighth or raised.
fn iq1_s(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 0);
    for part in 0..8 {
        let word = word_at(block, 34 + 2 * part);
        to.scales[part] = odd((word >> 12 & 7) as u8);
        let lowered = if word >> 15 == 1 { 0xff } else { 0 };
        for i in 0..4 {
            let upper = usize::from(word >> (3 * i) & 7);
            let index = usize::from(block[2 + 4 * part + i]) | upper << 8;
            to.set_entry(32 * part + 8 * i, 8, Grid::IQ1, index, lowered);
        }
    }
}

/// 32 bytes with the low eight bits of an index, 16 bytes with a half for each index: three bits
/// above it and whether its elements are lowered, and four words with four scales of three bits and
/// four bits of the f16 scale each.
fn iq1_m(block: &[u8], to: &mut LowBitBlock) {
    let words: [u16; 4] = std::array::from_fn(|at| word_at(block, 48 + 2 * at));
    let nibbles = words.iter().enumerate().map(|(at, word)| word >> 12 << (4 * at));
    to.scale = f16::from_bits(nibbles.fold(0, |bits, nibble| bits | nibble));
    for (part, scale) in to.scales.iter_mut().enumerate() {
        *scale = odd((words[part / 4] >> (part % 4 * 3) & 7) as u8);
    }
    for i in 0..32 {
        let above = half_byte(&block[32..48], i);
        let index = usize::from(block[i]) | usize::from(above & 7) << 8;
        let lowered = if above >> 3 == 1 { 0xff } else { 0 };
        to.set_entry(8 * i, 8, Grid::IQ1, index, lowered);
    }
}

/// 48 bytes with five digits to the base of three each, 4 bytes with four, and an f16 scale. The
/// digits of a byte belong to elements that are 32, 16 and 4 apart in three ranges of bytes. A byte
/// is a fraction of 256: its leading digit is the integer of three times that.
fn tq1_0(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 52);
    let mut first = 0;
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        let mut power = 1u8;
        for digit in 0..digits {
            for (i, byte) in bytes.iter().enumerate() {
                let leading = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                to.codes[first + digit * bytes.len() + i] = leading as u8;
            }
            power = power.wrapping_mul(3);
        }
        first += digits * bytes.len();
    }
}

/// 64 bytes of two bits, and an f16 scale.
fn tq2_0(block: &[u8], to: &mut LowBitBlock) {
    to.scale = half_at(block, 64);
    for (element, code) in to.codes.iter_mut().enumerate() {
        *code = two_bits(&block[..64], element);
    }
}
