//! Four columns of a plain weight, and the vectors to which a line of them is converted.

use std::arch::x86_64::*;

use half::bf16;

use super::chains::{COLS, Chains, LINE};
use crate::linear::reader::Plain;
use crate::simd::avx512_f32fma::transpose;

/// Four columns, or one column four times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    /// Input 0 of the first column.
    from: *const u8,
    /// Bytes from one column to the next.
    stride: usize,
}

impl Panel {
    /// Returns panel `panel` of a task.
    #[inline(always)]
    pub(super) fn of(reader: Plain<bf16>, chains: &Chains, panel: usize) -> Panel {
        let whole = panel < chains.whole_panels();
        let stride = if whole { reader.inputs() * size_of::<bf16>() } else { 0 };
        Panel { from: reader.row(chains.column(panel)).cast(), stride }
    }

    /// Returns the quarters of a whole line: vector `q` holds bytes `16 * q..16 * q + 16` of each
    /// column.
    ///
    /// # Safety
    /// The line exists in full.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn line(self, line: usize) -> [__m512i; COLS] {
        let at = self.from.wrapping_add(line * 64);
        // SAFETY: the caller's promise.
        transpose(unsafe {
            [
                _mm512_loadu_si512(at.cast()),
                _mm512_loadu_si512(at.add(self.stride).cast()),
                _mm512_loadu_si512(at.add(2 * self.stride).cast()),
                _mm512_loadu_si512(at.add(3 * self.stride).cast()),
            ]
        })
    }

    /// Returns the quarters of the first `inputs < LINE` inputs of a line, followed by zeros.
    ///
    /// # Safety
    /// These inputs exist.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn part(self, line: usize, inputs: usize) -> [__m512i; COLS] {
        debug_assert!(inputs < LINE);
        let mask = (1u32 << inputs) - 1;
        // SAFETY: masked elements are not accessed; the rest is the caller's promise.
        transpose([0, 1, 2, 3].map(|column| unsafe {
            let at = self.from.wrapping_add(line * 64 + column * self.stride);
            _mm512_maskz_loadu_epi16(mask, at.cast())
        }))
    }

    /// Prefetches the line `distance` bytes after `line` in every column.
    #[inline]
    #[target_feature(enable = "sse")]
    pub(super) fn prefetch(self, line: usize, distance: usize) {
        let at = self.from.wrapping_add(line * 64 + distance);
        for column in 0..COLS {
            let at = at.wrapping_add(column * self.stride);
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
}

/// Widens the low or the high bf16 of every dword to f32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn widen(dwords: __m512i, high: bool) -> __m512 {
    _mm512_castsi512_ps(if high {
        _mm512_and_si512(dwords, _mm512_set1_epi32(-0x1_0000))
    } else {
        _mm512_slli_epi32::<16>(dwords)
    })
}
