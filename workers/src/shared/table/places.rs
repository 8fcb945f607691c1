//! Where the positions of a sequence are in the caches.

use std::ops::Range;

use model::ops::Kv;
use program::ir::{At, ProgramId, Rows};
use program::map::Chunk;
use program::step_table::Field;

use super::StepTable;

impl StepTable {
    /// Positions that the caches of a layer keep of a sequence. Where that is fewer than it has,
    /// position `p` lies at `p` modulo this.
    pub fn kept_positions(&self, batch: usize, sequence: usize, layer: Option<u16>) -> usize {
        let capacity = self.field(batch, sequence, Field::KvCapacity);
        let window = self.window(layer).map(|window| self.layout.windows[window]);
        window.map_or(capacity, |window| window.min(capacity)) as usize
    }

    /// Whether the caches of a layer keep less than a sequence may have.
    pub fn is_windowed(&self, layer: Option<u16>) -> bool {
        self.window(layer).is_some()
    }

    /// Positions of a page of a layer's caches; 0: they are not in pages.
    pub fn page_positions(&self, layer: Option<u16>) -> u32 {
        if self.is_windowed(layer) { 0 } else { self.page_positions }
    }

    /// Pages that a sequence may have.
    pub fn pages(&self) -> usize {
        self.layout.pages as usize
    }

    /// A page of a sequence, that of positions `index * page_positions` and on.
    pub fn page(&self, batch: usize, sequence: usize, index: usize) -> u32 {
        self.words.load(self.page_at(batch, sequence, index))
    }

    /// Sets a page of a sequence, which has to be there before a step reads or appends positions of
    /// it.
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

    /// Elements before the first position of a unit in a batch's whole K or V cache of a layer.
    pub fn unit_offset(&self, at: At, sequence: usize, head: usize) -> usize {
        let batch = usize::from(at.batch);
        let start = match self.window(at.layer) {
            None => self.field(batch, sequence, Field::KvStart),
            Some(window) => self.words.load(self.layout.windowed_start(batch, sequence, window)),
        };
        let kept = self.kept_positions(batch, sequence, at.layer);
        (start as usize * self.kv_heads + head * kept) * self.head_dim
    }

    /// Elements before a chunk's first unit: what is subtracted within the chunk's own buffer.
    pub fn chunk_origin(&self, at: At, units: &Range<usize>) -> usize {
        if units.is_empty() {
            return 0;
        }
        self.unit_offset(at, units.start / self.kv_heads, units.start % self.kv_heads)
    }

    /// Sets the extents of a batch's sequences, which have so many positions each, one behind the
    /// other.
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

    /// Elements of a cache before those from which the units of a chunk of attention count: none
    /// where each chunk has a part of the cache of its own.
    pub fn cache_origin(&self, program: ProgramId, at: At, chunk: Option<Chunk>, kv: Kv) -> usize {
        let is_fused = self.program(program).rows == Rows::Chunks;
        let is_whole = self.chunking.is_some_and(|chunking| chunking.parts(kv) == 1);
        match chunk {
            Some(Chunk { of: 2.., .. }) if is_fused && is_whole => {
                self.chunk_origin(at, &self.chunk_units(usize::from(at.batch), chunk))
            }
            _ => 0,
        }
    }

    /// f32 that a unit takes in `Scores` and `Probabilities` (decode: one row).
    pub fn scores_stride(&self) -> usize {
        self.group * self.max_context
    }
}
