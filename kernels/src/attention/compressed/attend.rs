//! Attention to entries and a window.

use super::{EntryPlaces, EntryShape};
use crate::Kernels;
use crate::attention::compiled::AttentionTasks;
use crate::attention::indexed::{AttentionPart, Call, IndexedScratch, ListedVectors};
use crate::attention::shape::{AttentionShape, AttentionUnit};
use crate::number::Number;

impl Kernels {
    /// Runs a part of attention, or all of it, on each row's entries and the positions of its
    /// window, in this order. `selection`, `[rows, top_k]`, lists the entries of rows that have
    /// more than an indexer selects, and is empty without one. `attention` has one KV head, whose
    /// vectors are keys and values.
    ///
    /// # Panics
    /// If shapes do not match, units exceed `scratch`, or parts are run on units of several rows.
    pub fn attend_to_entries<T: AttentionTasks>(
        &self,
        scratch: &mut IndexedScratch,
        shape: &EntryShape,
        attention: &AttentionShape,
        places: &EntryPlaces<'_, T>,
        selection: &[u32],
        part: AttentionPart<'_, T>,
    ) {
        let rows = places.positions.fresh.len() / shape.place;
        let units = places.units.units;
        places.check(shape, rows);
        scratch.check_entries::<T>(shape, units, rows);
        let selected = shape.indexer.map_or(0, |indexer| indexer.top_k);
        assert_eq!(selection.len(), rows * selected, "selection is [rows, top_k]");
        let attention = AttentionShape { window: None, ..*attention };
        let is_of_vectors = attention.kv_heads == 1 && attention.head_dim == shape.vector;
        assert!(is_of_vectors, "attention has one head of vectors");
        let listed = EntriesAndWindow { shape, places, selection };
        self.attend_to_listed(scratch, &Call { shape: &attention, units, rows, listed }, part);
    }
}

/// Each row's entries, and then the positions of its window.
struct EntriesAndWindow<'a, T> {
    shape: &'a EntryShape,
    places: &'a EntryPlaces<'a, T>,
    selection: &'a [u32],
}

impl<T: Number> ListedVectors<T> for EntriesAndWindow<'_, T> {
    fn dense_rows(&self, _: &AttentionUnit) -> usize {
        0
    }

    fn count(&self, index: usize, row: usize) -> usize {
        self.shape.vectors(self.places.units.units[index].past as usize + row)
    }

    fn vector(&self, index: usize, row: usize, place: usize) -> &[T] {
        let unit = &self.places.units.units[index];
        let last = unit.past as usize + row;
        let (attended, entries) = (self.shape.attended(last), self.shape.entries(last));
        if place >= attended {
            let position = last + 1 - self.shape.seen(last) + place - attended;
            let positions = &self.places.positions;
            return positions.elements(&self.places.units.pages, unit, position, self.shape.place);
        }
        let number = match attended == entries {
            true => place,
            false => {
                let at = unit.row0 as usize + row;
                (self.selection[at * attended + place] as usize).min(entries - 1)
            }
        };
        self.places.entry(self.shape, index, number)
    }
}
