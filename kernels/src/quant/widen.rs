//! Conversion of stored formats to 8 bits, memory to memory: decompression on the emulated device.

use model::quantized_format::{Bits, Grouped, ROWS, ScaleLayout};

use super::record::{VECTOR_BYTES, first_step, integers_at, range, third_vector, upper_vectors};
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Widens a matrix of `k` inputs from records of `format` to records of `format.widened()`. Scales,
/// minimums and integers stay the same, so that a linear over either matrix yields the same bits.
/// `from` is any number of whole blocks of 16 rows, and `to` the same number of wide ones.
///
/// # Panics
/// Panics if `format` has 8 bits, the lengths do not match, or the machine lacks `variant`.
pub fn widen(variant: Variant, format: Grouped, k: usize, from: &[u8], to: &mut [u8]) {
    assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
    assert_ne!(format.bits, Bits::Eight, "8 bits are not widened");
    let (narrow, wide) = (format.block_bytes(k), format.widened().block_bytes(k));
    assert!(from.len().is_multiple_of(narrow), "{} bytes are no whole blocks", from.len());
    assert_eq!(to.len(), from.len() / narrow * wide, "the output has another size");
    widen_blocks(variant, Blocks { format, k, from, to });
}

#[inline(never)]
fn widen_blocks(variant: Variant, blocks: Blocks<'_>) {
    // SAFETY: needed to enter code compiled for the variant, which `widen` found available.
    unsafe { dispatch(variant, blocks) }
}

struct Blocks<'a> {
    format: Grouped,
    k: usize,
    from: &'a [u8],
    to: &'a mut [u8],
}

impl SimdTask for Blocks<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Blocks { format, k, from, to } = self;
        let wide = format.widened();
        let groups = format.scales.groups(format.group);
        let blocks = from.chunks_exact(format.block_bytes(k));
        for (from, to) in blocks.zip(to.chunks_exact_mut(wide.block_bytes(k))) {
            for (index, to) in to.chunks_exact_mut(wide.record_bytes()).enumerate() {
                let record = &from[index / groups * format.record_bytes()..];
                let record = &record[..format.record_bytes()];
                let (head, bytes) = to.split_at_mut(wide.scales.size_bytes(wide.group));
                widen_ranges(format, wide, record, index % groups, head);
                let at = integers_at(format, index % groups);
                let together = format.groups_together() * format.group_bytes();
                let first = first_step(format, index % groups);
                widen_integers(format, &record[at..][..together], first, bytes);
            }
        }
    }
}

/// Writes the scales and minimums of a group.
fn widen_ranges(format: Grouped, wide: Grouped, record: &[u8], group: usize, to: &mut [u8]) {
    if wide.scales == ScaleLayout::Halves {
        to.copy_from_slice(&record[..to.len()]);
        return;
    }
    for row in 0..ROWS {
        let (scale, minimum) = range(format, record, row, group);
        to[4 * row..][..4].copy_from_slice(&scale.to_le_bytes());
        to[4 * (ROWS + row)..][..4].copy_from_slice(&minimum.to_le_bytes());
    }
}

/// Widens the integers of a group, which begin at step `first_step` of `from`.
#[inline(always)]
fn widen_integers(format: Grouped, from: &[u8], first_step: usize, to: &mut [u8]) {
    if format.bits == Bits::Four {
        let vectors = from.as_chunks::<64>().0;
        for (from, to) in vectors.iter().zip(to.as_chunks_mut::<128>().0) {
            widen_vector(from, to);
        }
        return;
    }
    if let Bits::Table(table) = format.bits
        && table.index_bits() < 4
    {
        let values = table.values();
        let third = from.chunks_exact(VECTOR_BYTES).nth(third_vector(format));
        for (step, to) in to.chunks_exact_mut(VECTOR_BYTES).enumerate() {
            let step = first_step + step;
            let pairs = &from[step / 4 * VECTOR_BYTES..][..VECTOR_BYTES];
            for (i, (to, pairs)) in to.iter_mut().zip(pairs).enumerate() {
                let third = third.map_or(0, |third| third[i] >> step & 1);
                let code = pairs >> (step % 4 * 2) & 3 | third << 2;
                *to = values[usize::from(code)].cast_unsigned();
            }
        }
        return;
    }
    let upper = format.bits.upper();
    let (upper_bits, nibbles) = from.split_at(upper_vectors(format) * VECTOR_BYTES);
    let table = match format.bits {
        Bits::Table(table) => Some(table.values()),
        _ => None,
    };
    for (step, to) in to.chunks_exact_mut(VECTOR_BYTES).enumerate() {
        let nibbles = &nibbles[step / 2 * VECTOR_BYTES..][..VECTOR_BYTES];
        for (to, nibbles) in to.iter_mut().zip(nibbles) {
            *to = nibbles >> (step % 2 * 4) & 15;
        }
        if let Some(steps) = 8usize.checked_div(upper) {
            let upper_bits = &upper_bits[step / steps * VECTOR_BYTES..][..VECTOR_BYTES];
            for (to, bits) in to.iter_mut().zip(upper_bits) {
                *to |= (bits >> (step % steps * upper) & ((1 << upper) - 1)) << 4;
            }
        }
        for to in to.iter_mut() {
            *to = match table {
                Some(table) => table[usize::from(*to & 15)].cast_unsigned(),
                None => to.wrapping_sub(format.bits.offset()),
            };
        }
    }
}

/// Widens 16 dwords of eight integers to 16 dwords of the first four, then 16 of the last four.
#[inline(always)]
fn widen_vector(from: &[u8; 64], to: &mut [u8; 128]) {
    let (first, last) = to.split_at_mut(64);
    let first = first.as_chunks_mut::<4>().0;
    let last = last.as_chunks_mut::<4>().0;
    for ((dword, first), last) in from.as_chunks::<4>().0.iter().zip(first).zip(last) {
        let dword = u32::from_le_bytes(*dword);
        // Even inputs come from the low half, odd ones from the high half.
        let four =
            dword & 0xf | dword >> 8 & 0xf00 | dword << 12 & 0xf_0000 | dword << 4 & 0xf00_0000;
        *first = four.to_le_bytes();
        let four = dword >> 8 & 0xf
            | dword >> 16 & 0xf00
            | dword << 4 & 0xf_0000
            | dword >> 4 & 0xf00_0000;
        *last = four.to_le_bytes();
    }
}
