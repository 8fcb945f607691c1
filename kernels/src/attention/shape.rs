//! Shape of an attention call, its units, and the sizes derived from them.

use std::ops::Range;

use model::quantized_format::{KvRecordFormat, kv4_groups};

use super::kv4::keys::MAX_GROUPS;
use crate::simd::MAX_LANES;

/// Shape and scale shared by all units of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor of every score, normally `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Maximum number of positions that a row sees, at least one: its own and those right before
    /// it. `None`: all before it.
    pub window: Option<u32>,
}

impl AttentionShape {
    /// Returns the number of query heads that share a KV head.
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the first position that the row at `position` sees.
    pub const fn first_seen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.max_seen())
    }

    /// Returns the maximum number of positions that a row sees.
    #[inline(always)]
    pub(super) const fn max_seen(&self) -> usize {
        match self.window {
            Some(window) => window as usize,
            None => usize::MAX,
        }
    }
}

/// Cached K or V of all units of a call.
#[derive(Debug, Clone, Copy)]
pub enum KvCacheSlice<'a, T> {
    /// Elements.
    Plain(&'a [T]),
    /// One record per position; see `quant::quantise_kv`. Fresh rows are then quantised before use,
    /// so that they equal their later cached values.
    Records(KvRecordFormat, &'a [u8]),
}

impl<'a, T> From<&'a [T]> for KvCacheSlice<'a, T> {
    fn from(cache: &'a [T]) -> Self {
        KvCacheSlice::Plain(cache)
    }
}

impl<'a, T> From<&'a Vec<T>> for KvCacheSlice<'a, T> {
    fn from(cache: &'a Vec<T>) -> Self {
        KvCacheSlice::Plain(cache)
    }
}

/// One (sequence, KV head). No two units of a call may share both rows and KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionUnit {
    /// First fresh row in q, k and v.
    pub row0: u32,
    /// Fresh rows.
    pub rows: u32,
    /// Number of positions before them, cached unless `shared_row` is set.
    pub past: u32,
    /// First row of the positions before the fresh ones if they are rows of this call too, which
    /// belong to another sequence with the same beginning.
    pub shared_row: Option<u32>,
    pub kv_head: u32,
    /// Element offset of the first place, or of page 0, in the K and V caches, a multiple of
    /// `head_dim`, which is the distance between places; a quantised cache has a record for each
    /// `head_dim` elements.
    pub cache_offset: usize,
    /// Number of places in each cache: position `p` is stored at place `p % cache_positions`, so
    /// that the caches are rings, which hold the last positions. At least the window, so that all
    /// positions that the first fresh row sees exist. 0: position `p` is stored at place `p`.
    pub cache_positions: u32,
    /// If the caches are in pages, index of the first page in the list of the call
    /// ([`PageLists`](super::PageLists)); position `p` is stored in the page at list index
    /// `first_page + p / page_positions`.
    pub first_page: u32,
    /// Element offset in the scores and probabilities: `[row][query head in group][past + rows]`.
    /// Entries a row must not see are neither written nor read. Unused by fused attention.
    pub scores_offset: usize,
}

impl AttentionUnit {
    /// Returns the number of positions stored in the caches, which take that number of places,
    /// starting with the first.
    pub const fn cached(&self) -> u32 {
        match (self.shared_row, self.cache_positions) {
            (Some(_), _) => 0,
            (None, places) if places > 0 && places < self.past => places,
            (None, _) => self.past,
        }
    }

    /// Returns the number of positions in the caches that a row of the unit sees.
    pub const fn cached_seen(&self, shape: &AttentionShape) -> u32 {
        let seen = self.past - shape.first_seen(self.past as usize) as u32;
        if seen < self.cached() { seen } else { self.cached() }
    }

    /// Returns `(row, place)` of the rows whose K and V are stored in the unit's cache: all, or the
    /// last ones if it has too few places. If caches are in pages the place is the position, whose
    /// location [`paged_place`](super::paged_place) returns.
    pub fn appended(&self) -> impl Iterator<Item = (usize, usize)> {
        let AttentionUnit { row0, rows, past, shared_row, cache_positions, .. } = *self;
        let shared = shared_row.into_iter().flat_map(move |row| (row..row + past).zip(0..past));
        let fresh = (row0..row0 + rows).zip(past..past + rows);
        let (first, places) = match cache_positions {
            0 => (0, u32::MAX),
            places => ((past + rows).saturating_sub(places), places),
        };
        let kept = shared.chain(fresh).filter(move |(_, position)| *position >= first);
        kept.map(move |(row, position)| (row as usize, (position % places) as usize))
    }

    pub(super) fn positions(&self) -> usize {
        self.past as usize + self.rows as usize
    }

    /// Returns the place of the first of `positions`, which are cached, and the end of those that
    /// follow it contiguously: the end of the ring, or all.
    #[inline(always)]
    pub(super) fn run(&self, positions: &Range<usize>) -> (usize, usize) {
        let places = self.cache_positions as usize;
        if places == 0 {
            return (positions.start, positions.end);
        }
        // First position of the ring's last round.
        let round = self.past as usize / places * places;
        if positions.start < round {
            (positions.start + places - round, positions.end.min(round))
        } else {
            (positions.start - round, positions.end)
        }
    }

    /// Returns the positions that fresh rows `rows` of the unit see: from the first of the first
    /// row to the last of the last.
    #[inline(always)]
    pub(super) fn seen(&self, shape: &AttentionShape, rows: &Range<usize>) -> Range<usize> {
        let past = self.past as usize;
        shape.first_seen(past + rows.start)..past + rows.end
    }
}

/// Returns the elements of the scores of a unit of `rows` fresh rows after `past` cached ones.
pub const fn scores_len(shape: &AttentionShape, rows: usize, past: usize) -> usize {
    rows * shape.group() * (past + rows)
}

/// Returns the floats of a head in scratch: whole pairs of the widest vectors, and whole vectors of
/// every nibble of a 4-bit record.
pub(super) const fn head_stride(head_dim: usize) -> usize {
    head_dim.next_multiple_of(8 * MAX_LANES)
}

/// Returns the bytes of a position in a quantised cache.
pub(super) fn record_bytes(format: KvRecordFormat, head_dim: usize) -> usize {
    let is_supported = match format {
        KvRecordFormat::Four => kv4_groups(head_dim) <= MAX_GROUPS,
        KvRecordFormat::Eight => true,
    };
    match format.position_bytes(head_dim) {
        Some(bytes) if is_supported => bytes,
        _ => panic!("a {}-bit KV cache cannot hold heads of {head_dim} elements", format.bits()),
    }
}

/// Returns the floats of a row of scores in scratch.
pub(super) const fn score_stride(positions: usize) -> usize {
    positions.next_multiple_of(MAX_LANES) + MAX_LANES
}

/// Positions of a chunk, a multiple of every vector length.
pub(super) const CHUNK: usize = 1024;

/// Returns the chunks that contain some positions.
pub(super) fn chunks_of(positions: &Range<usize>) -> Range<usize> {
    positions.start / CHUNK..positions.end.div_ceil(CHUNK)
}

/// Returns the subset of `positions` within a chunk.
pub(super) fn within_chunk(positions: &Range<usize>, chunk: usize) -> Range<usize> {
    within_chunks(positions, &(chunk..chunk + 1))
}

/// Returns the subset of `positions` within some chunks.
pub(super) fn within_chunks(positions: &Range<usize>, chunks: &Range<usize>) -> Range<usize> {
    let start = positions.start.max(chunks.start * CHUNK);
    start..positions.end.min(chunks.end * CHUNK).max(start)
}
