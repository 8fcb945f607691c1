//! What a call of attention works on, and the sizes that follow from it.

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
}

impl AttentionShape {
    /// Query heads that share a KV head.
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
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
    /// Element offset of position 0 in the K and V caches, a multiple of `head_dim`, which
    /// positions are apart; a 4-bit cache has a record for each `head_dim` elements.
    pub cache_offset: usize,
    /// Element offset in the scores and probabilities: `[row][query head in group][past + rows]`.
    /// Entries a row must not see are neither written nor read. Unused by the fused form.
    pub scores_offset: usize,
}

impl Unit {
    /// Positions that lie in the caches.
    pub const fn cached(&self) -> u32 {
        if self.shared_row.is_some() { 0 } else { self.past }
    }

    /// `(row, position)` of all rows whose K and V belong into the unit's cache.
    pub fn appended(&self) -> impl Iterator<Item = (usize, usize)> {
        let Unit { row0, rows, past, shared_row, .. } = *self;
        let shared = shared_row.into_iter().flat_map(move |row| (row..row + past).zip(0..past));
        let fresh = (row0..row0 + rows).zip(past..past + rows);
        shared.chain(fresh).map(|(row, position)| (row as usize, position as usize))
    }

    pub(super) fn positions(&self) -> usize {
        self.past as usize + self.rows as usize
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
