//! Places of positions in caches and among fresh rows.

use crate::attention::pages::PageLists;
use crate::attention::shape::AttentionUnit;
use crate::number::Number;

/// Places of the positions of a call.
#[derive(Debug, Clone, Copy)]
pub struct IndexedPlaces<'a, T> {
    /// Places of the call's rows, `[rows, place]`.
    pub fresh: &'a [T],
    /// Cached places; empty if nothing is cached.
    pub cache: &'a [T],
}

impl<'a, T: Number> IndexedPlaces<'a, T> {
    /// Returns the place of a position of a unit, of `place` elements.
    pub(in crate::attention) fn elements(
        &self,
        pages: &PageLists<'_>,
        unit: &AttentionUnit,
        position: usize,
        place: usize,
    ) -> &'a [T] {
        let past = unit.past as usize;
        let row = match (position.checked_sub(past), unit.shared_row) {
            (Some(after), _) => unit.row0 as usize + after,
            (None, Some(shared)) => shared as usize + position,
            (None, None) => {
                let ring = unit.cache_positions as usize;
                let index = if ring > 0 { position % ring } else { position };
                let index = pages.place(unit, 1, index);
                return &self.cache[unit.cache_offset + index * place..][..place];
            }
        };
        &self.fresh[row * place..][..place]
    }
}
