//! Conversion of the integer sums of a group to f32.

use std::arch::x86_64::*;

use crate::linear::factors::FACTORS;
use crate::linear::task::TaskOperands;

/// Combines the sums of products of the two digits of `v` to sums of products of `v`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn whole(high: __m512i, low: __m512i) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<4>(high), low)
}

/// Factors of a tile of rows and a group; see `linear::factors`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factors {
    at: *const f32,
    rows: usize,
}

impl Factors {
    pub(super) fn of(area: &TaskOperands, tile: usize, group: usize) -> Self {
        let (tiles, first) = (area.tiles, area.tiles.start(tile));
        let at = area.sums.pointer().wrapping_add(FACTORS * (group * tiles.rows + first));
        Factors { at, rows: tiles.height(tile) }
    }

    /// Returns the factors that are `floats` further.
    pub(super) fn skip(self, floats: usize) -> Self {
        Factors { at: self.at.wrapping_add(floats), ..self }
    }

    /// Returns the `total` of sixteen columns after a group. `part` holds the sums of products of
    /// `v` with the weights themselves if `PLAIN`, otherwise with the weights plus their offset.
    ///
    /// # Safety
    /// The row exists.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f")]
    pub(super) unsafe fn add<const PLAIN: bool>(
        self,
        row: usize,
        total: __m512,
        mut part: __m512i,
        scale: __m512,
        min: __m512,
    ) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            if !PLAIN {
                let more = *self.at.add(2 * self.rows + row).cast::<i32>();
                part = _mm512_sub_epi32(part, _mm512_set1_epi32(more));
            }
            let step = _mm512_set1_ps(*self.at.add(row));
            let part = _mm512_mul_ps(_mm512_cvtepi32_ps(part), step);
            let sum = _mm512_set1_ps(*self.at.add(self.rows + row));
            _mm512_fmadd_ps(min, sum, _mm512_fmadd_ps(scale, part, total))
        }
    }
}
