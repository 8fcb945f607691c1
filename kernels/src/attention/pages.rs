//! Caches in pages: the units of a call, and the pages that hold their positions.
//!
//! A page holds some positions of all KV heads of a layer, `(page, kv head, position, d)`. Within a
//! page a head's positions are contiguous, so attention reads them like a ring: run by run. The
//! boundaries between runs do not change any bit.

use std::ops::Range;

use super::shape::AttentionUnit;

/// Alignment of the positions of a page, so that pages end where vectors of positions do.
const PAGE_STEP: u32 = 16;

/// Page lists of the caches.
#[derive(Debug, Clone, Copy, Default)]
pub struct PageLists<'a> {
    /// Positions of a page, a multiple of 16; 0 if caches are not in pages.
    pub page_positions: u32,
    /// Pages of each sequence in the order of its positions, starting at
    /// [`AttentionUnit::first_page`]; indices into the caches, in pages from 0.
    pub pages: &'a [u32],
}

/// Units of a call, with the pages of their caches.
#[derive(Debug, Clone, Copy)]
pub struct AttentionUnits<'a> {
    pub units: &'a [AttentionUnit],
    /// If there are any pages, no unit's cache is a ring.
    pub pages: PageLists<'a>,
}

impl<'a> From<&'a [AttentionUnit]> for AttentionUnits<'a> {
    fn from(units: &'a [AttentionUnit]) -> Self {
        AttentionUnits { units, pages: PageLists::default() }
    }
}

impl<'a> From<&'a Vec<AttentionUnit>> for AttentionUnits<'a> {
    fn from(units: &'a Vec<AttentionUnit>) -> Self {
        units.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [AttentionUnit; N]> for AttentionUnits<'a> {
    fn from(units: &'a [AttentionUnit; N]) -> Self {
        units.as_slice().into()
    }
}

/// Returns the place of a position that is stored in `page`: the number of head vectors before it
/// in a cache whose pages hold `page_positions` positions of each of `kv_heads` heads.
pub const fn paged_place(
    page: u32,
    page_positions: u32,
    kv_heads: usize,
    kv_head: u32,
    position: usize,
) -> usize {
    let within = position % page_positions as usize;
    (page as usize * kv_heads + kv_head as usize) * page_positions as usize + within
}

impl PageLists<'_> {
    /// Returns true if caches are in pages.
    #[inline(always)]
    pub(super) const fn is_paged(&self) -> bool {
        self.page_positions > 0
    }

    /// Returns the location of a unit's place as returned by [`AttentionUnit::appended`], in head
    /// vectors from the cache's first place.
    #[inline(always)]
    pub(super) fn place(&self, unit: &AttentionUnit, kv_heads: usize, place: usize) -> usize {
        if !self.is_paged() {
            return place;
        }
        let page = self.pages[unit.first_page as usize + place / self.page_positions as usize];
        paged_place(page, self.page_positions, kv_heads, unit.kv_head, place)
    }

    /// Returns the place of the first of `positions`, which are cached, and the end of those that
    /// follow it contiguously: the end of the page or of the ring, or all.
    #[inline(always)]
    pub(super) fn run(
        &self,
        unit: &AttentionUnit,
        kv_heads: usize,
        positions: &Range<usize>,
    ) -> (usize, usize) {
        if !self.is_paged() {
            return unit.run(positions);
        }
        let page_positions = self.page_positions as usize;
        let end = (positions.start / page_positions + 1) * page_positions;
        (self.place(unit, kv_heads, positions.start), positions.end.min(end))
    }

    /// Returns the places of the caches up to the end of the last page that holds cached positions
    /// of a unit.
    pub(super) fn end(&self, unit: &AttentionUnit, kv_heads: usize) -> usize {
        if !self.is_paged() {
            return unit.cached() as usize;
        }
        assert!(self.page_positions.is_multiple_of(PAGE_STEP), "a page is a multiple of 16");
        assert!(unit.cache_positions == 0, "a ring is never in pages");
        let first = unit.first_page as usize;
        let count = unit.cached().div_ceil(self.page_positions) as usize;
        let own = self.pages.get(first..first + count);
        let pages = own.expect("a unit's pages lie within the list").iter();
        let end = pages.max().map_or(0, |last| *last as usize + 1);
        end * kv_heads * self.page_positions as usize
    }
}
