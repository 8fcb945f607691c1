//! What a call of attention works on, and the sizes that follow from it.

use std::ops::Range;

use model::compressed::{kv4_groups, kv4_position_bytes};

use super::four::keys::MOST_GROUPS;
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
    /// Positions that a row sees at most, at least one: its own and those right before it. `None`:
    /// all before it.
    pub window: Option<u32>,
}

impl AttentionShape {
    /// Query heads that share a KV head.
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The first position that the row at `position` sees.
    pub const fn first_seen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.most_seen())
    }

    /// Positions that a row sees at most.
    #[inline(always)]
    pub(super) const fn most_seen(&self) -> usize {
        match self.window {
            Some(window) => window as usize,
            None => usize::MAX,
        }
    }
}

/// The cached K or V of all units of a call.
#[derive(Debug, Clone, Copy)]
pub enum Cache<'a, T> {
    /// Elements.
    Plain(&'a [T]),
    /// A record of 4-bit integers per position; see `grouped::quantise_kv`. Fresh rows are then
    /// seen as they will be read from the cache later: quantised.
    Four(&'a [u8]),
}

impl<'a, T> From<&'a [T]> for Cache<'a, T> {
    fn from(cache: &'a [T]) -> Self {
        Cache::Plain(cache)
    }
}

impl<'a, T> From<&'a Vec<T>> for Cache<'a, T> {
    fn from(cache: &'a Vec<T>) -> Self {
        Cache::Plain(cache)
    }
}

/// One (sequence, KV head). No two units of a call may share both rows and KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// First fresh row in q, k and v.
    pub row0: u32,
    /// Fresh rows.
    pub rows: u32,
    /// Positions before them, cached unless `shared_row` says otherwise.
    pub past: u32,
    /// Where the positions before the fresh ones lie if they are rows of this call too: from this
    /// row on, which belong to another sequence that begins alike.
    pub shared_row: Option<u32>,
    pub kv_head: u32,
    /// Element offset of the first place, or of page 0, in the K and V caches, a multiple of
    /// `head_dim`, which places are apart; a 4-bit cache has a record for each `head_dim` elements.
    pub cache_offset: usize,
    /// Places in each cache: position `p` lies at place `p % cache_positions`, so that the caches
    /// are rings, which hold the last positions. They are at least the window, so that what the
    /// first fresh row sees is there. 0: position `p` lies at place `p`.
    pub cache_positions: u32,
    /// Where the caches are in pages, the place of its first page in the list of the call
    /// ([`PageLists`](super::PageLists)); position `p` then lies in the page `p / page_positions`
    /// behind it.
    pub first_page: u32,
    /// Element offset in the scores and probabilities: `[row][query head in group][past + rows]`.
    /// Entries a row must not see are neither written nor read. Unused by the fused form.
    pub scores_offset: usize,
}

impl Unit {
    /// Positions that lie in the caches, which take as many places, from the first on.
    pub const fn cached(&self) -> u32 {
        match (self.shared_row, self.cache_positions) {
            (Some(_), _) => 0,
            (None, places) if places > 0 && places < self.past => places,
            (None, _) => self.past,
        }
    }

    /// Positions in the caches that a row of the unit sees.
    pub const fn cached_seen(&self, shape: &AttentionShape) -> u32 {
        let seen = self.past - shape.first_seen(self.past as usize) as u32;
        if seen < self.cached() { seen } else { self.cached() }
    }

    /// `(row, place)` of the rows whose K and V belong into the unit's cache: all, or the last ones
    /// where it has no places for more. Where caches are in pages the place is the position, which
    /// lies where [`paged_place`](super::paged_place) says.
    pub fn appended(&self) -> impl Iterator<Item = (usize, usize)> {
        let Unit { row0, rows, past, shared_row, cache_positions, .. } = *self;
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

    /// The place of the first of `positions`, which are cached, and how far they lie one behind the
    /// other: to the end of the ring, or all.
    #[inline(always)]
    pub(super) fn run(&self, positions: &Range<usize>) -> (usize, usize) {
        let places = self.cache_positions as usize;
        if places == 0 {
            return (positions.start, positions.end);
        }
        // The position whose place is the first in the ring's last round.
        let round = self.past as usize / places * places;
        if positions.start < round {
            (positions.start + places - round, positions.end.min(round))
        } else {
            (positions.start - round, positions.end)
        }
    }

    /// Positions that fresh rows `rows` of the unit see: the first of the first row to the last of
    /// the last.
    #[inline(always)]
    pub(super) fn seen(&self, shape: &AttentionShape, rows: &Range<usize>) -> Range<usize> {
        let past = self.past as usize;
        shape.first_seen(past + rows.start)..past + rows.end
    }
}

/// Elements that a unit of `rows` fresh rows behind `past` cached ones takes in the scores.
pub const fn scores_len(shape: &AttentionShape, rows: usize, past: usize) -> usize {
    rows * shape.group() * (past + rows)
}

/// Floats of a head in scratch: whole pairs of the widest vectors, and whole vectors of every
/// nibble of a 4-bit record.
pub(super) const fn head_stride(head_dim: usize) -> usize {
    head_dim.next_multiple_of(8 * MAX_LANES)
}

/// Bytes of a position in a 4-bit cache.
pub(super) fn record_bytes(head_dim: usize) -> usize {
    match kv4_position_bytes(head_dim) {
        Some(bytes) if kv4_groups(head_dim) <= MOST_GROUPS => bytes,
        _ => panic!("a 4-bit KV cache cannot hold heads of {head_dim} elements"),
    }
}

/// Floats of a row of scores in scratch.
pub(super) const fn score_stride(positions: usize) -> usize {
    positions.next_multiple_of(MAX_LANES) + MAX_LANES
}

/// Positions of a chunk, a multiple of every vector.
pub(super) const CHUNK: usize = 1024;

/// The chunks that some positions lie in.
pub(super) fn chunks_of(positions: &Range<usize>) -> Range<usize> {
    positions.start / CHUNK..positions.end.div_ceil(CHUNK)
}

/// Those of `positions` that lie in a chunk.
pub(super) fn within_chunk(positions: &Range<usize>, chunk: usize) -> Range<usize> {
    within_chunks(positions, &(chunk..chunk + 1))
}

/// Those of `positions` that lie in some chunks.
pub(super) fn within_chunks(positions: &Range<usize>, chunks: &Range<usize>) -> Range<usize> {
    let start = positions.start.max(chunks.start * CHUNK);
    start..positions.end.min(chunks.end * CHUNK).max(start)
}
