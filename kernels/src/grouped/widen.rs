//! 4 bits to 8 bits, memory to memory: decompression on the emulated device.

use model::compressed::{Bits, Grouped};

use super::record::INTEGERS;
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Widens records of `format`, 4 bits, to records of `format.widened()`: the same scales, minimums
/// and integers, so that a linear over either gives the same bits. `from` is any number of whole
/// records, `to` as many wide ones.
///
/// # Panics
/// `format` is not of 4 bits, the lengths do not match, or the machine lacks `variant`.
pub fn widen(variant: Variant, format: Grouped, from: &[u8], to: &mut [u8]) {
    assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
    assert_eq!(format.bits, Bits::Four, "only 4 bits can be widened");
    let (narrow, wide) = (format.record_bytes(), format.widened().record_bytes());
    assert!(from.len().is_multiple_of(narrow), "{} bytes are no whole records", from.len());
    assert_eq!(to.len(), from.len() / narrow * wide, "the output has another size");
    widen_records(variant, Records { narrow, wide, from, to });
}

#[inline(never)]
fn widen_records(variant: Variant, records: Records<'_>) {
    // SAFETY: needed to enter code compiled for the variant, which `widen` found available.
    unsafe { dispatch(variant, records) }
}

struct Records<'a> {
    /// Bytes of a record of either side.
    narrow: usize,
    wide: usize,
    from: &'a [u8],
    to: &'a mut [u8],
}

impl SimdTask for Records<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Records { narrow, wide, from, to } = self;
        for (from, to) in from.chunks_exact(narrow).zip(to.chunks_exact_mut(wide)) {
            to[..INTEGERS].copy_from_slice(&from[..INTEGERS]);
            let vectors = from[INTEGERS..].as_chunks::<64>().0;
            for (from, to) in vectors.iter().zip(to[INTEGERS..].as_chunks_mut::<128>().0) {
                widen_vector(from, to);
            }
        }
    }
}

/// 16 dwords of eight integers to 16 dwords of the first four, then 16 of the last four.
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
