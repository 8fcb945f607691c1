//! Places of a sequence's positions in the caches.

use std::ops::Range;

use model::ops::Kv;
use program::ir::{At, ProgramId, Rows};
use program::map::Chunk;
use program::step_table::Field;

use super::StepTable;
use super::head_sizes::HeadSizes;

impl StepTable {
    /// Returns the number of positions of a sequence that the caches of a layer keep. If that is
    /// fewer than the sequence has, position `p` is stored at `p` modulo this number.
    pub fn kept_positions(&self, batch: usize, sequence: usize, layer: Option<u16>) -> usize {
        let capacity = self.field(batch, sequence, Field::KvCapacity);
        let window = self.window(layer).map(|window| self.layout.windows[window]);
        window.map_or(capacity, |window| window.min(capacity)) as usize
    }

    /// Returns true if a cache of a layer keeps fewer positions than a sequence may have.
    pub fn is_windowed(&self, layer: Option<u16>, kv: Kv) -> bool {
        self.window(layer).is_some() && self.cache_rate(layer, kv) == 1
    }

    /// Returns the number of places of a page of a layer's cache; 0 if it is not paged.
    pub fn page_places(&self, layer: Option<u16>, kv: Kv) -> u32 {
        match self.is_windowed(layer, kv) {
            true => 0,
            false => self.page_positions / self.cache_rate(layer, kv) as u32,
        }
    }

    /// Returns the maximum number of pages of a sequence.
    pub fn pages(&self) -> usize {
        self.layout.pages as usize
    }

    /// Returns the page of a sequence that starts at position `index * page_positions`.
    pub fn page(&self, batch: usize, sequence: usize, index: usize) -> u32 {
        self.words.load(self.page_at(batch, sequence, index))
    }

    /// Sets a page of a sequence, which must precede any step that reads or appends its positions.
    pub fn set_page(&self, batch: usize, sequence: usize, index: usize, page: u32) {
        self.words.store(self.page_at(batch, sequence, index), page);
    }

    fn page_at(&self, batch: usize, sequence: usize, index: usize) -> usize {
        assert!(index < self.pages(), "page {index} of {}", self.pages());
        self.layout.pages(batch, sequence) + index
    }

    fn window(&self, layer: Option<u16>) -> Option<usize> {
        self.windows[usize::from(layer?)].map(usize::from)
    }

    /// Returns the number of elements before the first place of a unit in a batch's whole K or V
    /// cache of a layer.
    pub fn unit_offset(&self, at: At, kv: Kv, sequence: usize, head: usize) -> usize {
        let batch = usize::from(at.batch);
        let HeadSizes { kv_heads, .. } = self.heads_of(at.layer);
        let (rate, place_dim) = (self.cache_rate(at.layer, kv), self.place_dim(at.layer, kv));
        let window = self.window(at.layer).filter(|_| rate == 1);
        let start = match window {
            None => self.field(batch, sequence, Field::KvStart),
            Some(window) => self.words.load(self.layout.windowed_start(batch, sequence, window)),
        };
        let kept = match rate {
            1 => self.kept_positions(batch, sequence, at.layer),
            rate => self.field(batch, sequence, Field::KvCapacity) as usize / rate,
        };
        // Whole groups of earlier positions leave a place for each of the sequence's own.
        (start as usize / rate * kv_heads + head * kept) * place_dim
    }

    /// Returns the number of elements of a cache before a chunk's first unit, which are subtracted
    /// within the chunk's own buffer.
    pub fn chunk_origin(&self, at: At, kv: Kv, units: &Range<usize>) -> usize {
        if units.is_empty() {
            return 0;
        }
        let kv_heads = self.kv_heads(at.layer);
        self.unit_offset(at, kv, units.start / kv_heads, units.start % kv_heads)
    }

    /// Sets the extents of a batch's sequences, which are consecutive and have the given numbers of
    /// positions.
    pub fn set_extents(&self, batch: usize, capacities: &[u32]) {
        let mut start = 0;
        for (sequence, capacity) in capacities.iter().enumerate() {
            self.set_field(batch, sequence, Field::KvCapacity, *capacity);
            self.set_field(batch, sequence, Field::KvStart, start);
            start += capacity;
        }
        for (window, positions) in self.layout.windows.iter().enumerate() {
            let mut start = 0;
            for (sequence, capacity) in capacities.iter().enumerate() {
                self.words.store(self.layout.windowed_start(batch, sequence, window), start);
                start += capacity.min(positions);
            }
        }
    }

    /// Returns the number of elements of a cache before the origin of a chunk's unit offsets; 0 if
    /// each chunk has its own part of the cache.
    pub fn cache_origin(&self, program: ProgramId, at: At, chunk: Option<Chunk>, kv: Kv) -> usize {
        let is_fused = self.program(program).rows == Rows::Chunks;
        let is_whole = self.chunking.is_some_and(|chunking| chunking.parts(kv) == 1);
        match chunk {
            Some(Chunk { of: 2.., .. }) if is_fused && is_whole => {
                self.chunk_origin(at, kv, &self.chunk_units(at, chunk))
            }
            _ => 0,
        }
    }

    /// Returns the number of f32 of a unit of a layer in `Scores` and `Probabilities` (decode: one
    /// row).
    pub fn scores_stride(&self, layer: Option<u16>) -> usize {
        self.group(layer) * self.heads_of(layer).attended
    }
}
