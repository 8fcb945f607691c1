//! A block: some rows of one unit, the location of their K and V, and their scores.
//!
//! A *query* is one (row, head of the group); queries of a block are numbered row by row. Query `r`
//! sees positions `start(r)..limit(r)`: those of its window, or all, up to its own row's. Neither
//! bound decreases from one query to the next.

use std::ops::Range;

use model::quantized_format::KvRecordFormat;

#[cfg(target_arch = "x86_64")]
use super::avx512_bf16;
use super::keys::{Keys, Queries};
use super::pages::PageLists;
use super::prefetch::Prefetcher;
use super::scores::{blocked, chains};
use super::segment::Segment;
use super::shape::{AttentionShape, AttentionUnit, head_stride};
use super::strided::{KvPointers, Strided};
use crate::number::Number;
use crate::simd::partial::store_between;
use crate::simd::{OutOfLine, Simd};

/// Number of positions whose K stays in L1 while many queries are multiplied with it in pairs.
pub(super) const PAIRS_POSITIONS: usize = 128;

/// Maximum number of queries in a tile of scores.
const MAX_TILE_QUERIES: usize = 8;

/// K or V of a call, either as elements or as records, whose formats have pointers of different
/// types.
#[derive(Debug)]
pub(super) enum KvSource<T> {
    Plain(KvPointers<T>),
    Kv4(KvPointers<u8>),
    Kv8(KvPointers<i8>),
}

impl<T> KvSource<T> {
    /// Returns the source of some records.
    pub(super) const fn records(format: KvRecordFormat, records: KvPointers<u8>) -> Self {
        match format {
            KvRecordFormat::Four => KvSource::Kv4(records),
            KvRecordFormat::Eight => KvSource::Kv8(records.as_signed()),
        }
    }

    pub(super) const fn is_plain(&self) -> bool {
        matches!(self, KvSource::Plain(_))
    }
}

impl<T> Clone for KvSource<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for KvSource<T> {}

/// Fresh rows `rows` of a unit, and the scratch of their queries.
pub(super) struct Block<'a, S> {
    pub s: S,
    pub shape: &'a AttentionShape,
    pub unit: AttentionUnit,
    pub pages: PageLists<'a>,
    pub rows: Range<usize>,
    /// Number of query heads that share the KV head; stored because dividing each time is
    /// measurably slower.
    pub group: usize,
    /// Maximum number of positions that a query sees.
    pub window: usize,
    /// One head per query, `head_stride` apart.
    pub packed: *mut f32,
    /// True if scores and weighted values are dot products of pairs of bf16.
    pub pairs: bool,
    /// Space for a transposed block of K, followed by that for decoded records.
    pub transposed: *mut f32,
}

impl<S: Simd> Block<'_, S> {
    #[inline(always)]
    pub(super) fn queries(&self) -> usize {
        self.rows.len() * self.group
    }

    /// Returns the first position that query `query` sees.
    #[inline(always)]
    pub(super) fn start(&self, query: usize) -> usize {
        self.limit(query).saturating_sub(self.window)
    }

    /// Returns the end of the positions that query `query` sees.
    #[inline(always)]
    pub(super) fn limit(&self, query: usize) -> usize {
        let row = if self.rows.len() == 1 { 0 } else { query / self.group };
        self.unit.past as usize + self.rows.start + row + 1
    }

    /// Returns the positions that query `query` sees.
    #[inline(always)]
    pub(super) fn seen(&self, query: usize) -> Range<usize> {
        self.start(query)..self.limit(query)
    }

    /// Returns true if any of queries `queries` sees any of `positions`.
    #[inline(always)]
    pub(super) fn sees(&self, queries: Range<usize>, positions: Range<usize>) -> bool {
        self.limit(queries.end - 1) > positions.start && self.start(queries.start) < positions.end
    }

    /// Returns the positions that queries of the block see.
    #[inline(always)]
    pub(super) fn positions(&self) -> Range<usize> {
        self.unit.seen(self.shape, &self.rows)
    }

    /// Returns a query's head.
    #[inline(always)]
    pub(super) fn head(&self, query: usize) -> usize {
        self.unit.kv_head as usize * self.group + query % self.group
    }

    /// Returns the offset of a query's head in a `[rows, heads * head_dim]` tensor.
    #[inline(always)]
    pub(super) fn head_offset(&self, query: usize) -> usize {
        let AttentionShape { heads, head_dim, .. } = *self.shape;
        let row = self.unit.row0 as usize + self.rows.start + query / self.group;
        (row * heads + self.head(query)) * head_dim
    }

    /// Returns the longest prefix of `positions` that is stored at one stride, with `size` elements
    /// of `T` per position.
    #[inline(always)]
    pub(super) fn segment<T>(
        &self,
        kv: KvPointers<T>,
        size: usize,
        positions: &Range<usize>,
    ) -> Segment<T> {
        let KvPointers { fresh, cache } = kv;
        let AttentionShape { kv_heads, head_dim, .. } = *self.shape;
        let AttentionUnit { row0, past, shared_row, kv_head, cache_offset, .. } = self.unit;
        let (first, past) = (positions.start, past as usize);
        let of_rows = |row: usize, end: usize| Segment {
            first,
            end,
            base: fresh.wrapping_add((row * kv_heads + kv_head as usize) * size),
            stride: kv_heads * size,
            cached: false,
        };
        if first >= past {
            return of_rows(row0 as usize + first - past, positions.end);
        }
        let before = first..positions.end.min(past);
        if let Some(row) = shared_row {
            return of_rows(row as usize + first, before.end);
        }
        let (place, end) = self.pages.run(&self.unit, kv_heads, &before);
        // Elements may be at any offset, records only at multiples of their size.
        let offset = if size == head_dim { cache_offset } else { cache_offset / head_dim * size };
        let base = cache.wrapping_add(offset + place * size);
        Segment { first, end, base, stride: size, cached: true }
    }

    /// Packs the block's queries as f32, padded with zeros.
    ///
    /// # Safety
    /// The unit is within q.
    #[inline(always)]
    pub(super) unsafe fn pack_queries<T: Number>(&self, q: *const T) {
        let head_dim = self.shape.head_dim;
        for query in 0..self.queries() {
            let packed = self.packed_queries(query);
            #[cfg(target_arch = "x86_64")]
            if const { can_pair::<S, T>() } && self.pairs {
                // SAFETY: only bf16 has pairs; the head is within q, and scratch has space for it
                // as f32.
                unsafe {
                    let from = q.add(self.head_offset(query)).cast();
                    avx512_bf16::pack(from, head_dim, packed.from.cast_mut().cast());
                }
                continue;
            }
            // SAFETY: the head is within q; scratch has space for every query's head.
            unsafe {
                let (from, to) = (q.add(self.head_offset(query)), packed.from.cast_mut());
                std::ptr::write_bytes(to, 0, packed.stride);
                for i in 0..head_dim {
                    *to.add(i % 2 * packed.odd + i / 2) = (*from.add(i)).to_f32();
                }
            }
        }
    }

    /// Returns the packed queries starting at `query`.
    #[inline(always)]
    pub(super) fn packed_queries(&self, query: usize) -> Queries {
        let stride = head_stride(self.shape.head_dim);
        let from = self.packed.cast_const().wrapping_add(query * stride);
        Queries { from, stride, odd: stride / 2 }
    }

    /// Writes the scores of the packed queries at `positions`, a row of `out` per query, which
    /// starts at position 0.
    ///
    /// # Safety
    /// The unit is within k; `out` has space for every query's visible positions.
    #[inline(always)]
    pub(super) unsafe fn scores<T: Number>(
        &self,
        k: KvPointers<T>,
        out: Strided<*mut f32>,
        positions: Range<usize>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let Range { start: mut first, end } = positions;
        while first < end {
            let segment = self.segment(k, self.shape.head_dim, &(first..end));
            // SAFETY: the caller's promise.
            unsafe { self.segment_scores(segment, out, prefetcher) };
            first = segment.end;
        }
    }

    /// Implements [`Block::scores`] for the positions of a segment.
    ///
    /// # Safety
    /// Same contract as [`Block::scores`].
    #[inline(always)]
    pub(super) unsafe fn segment_scores<T: Number>(
        &self,
        segment: Segment<T>,
        out: Strided<*mut f32>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        // A few queries take a transposed vector of K straight from its register or, in pairs, all
        // of a segment at once.
        let direct = const { !S::IS_PORTABLE } && self.queries() <= 4;
        let step = match (self.pairs, direct) {
            (true, true) => usize::MAX,
            (true, false) => PAIRS_POSITIONS,
            (false, true) => S::LANES,
            _ => 2 * S::LANES,
        };
        let fresh_distance = match segment.cached {
            true => None,
            false => Some(segment.distance().max(2 * S::LANES) * segment.stride),
        };
        let mut first = segment.first;
        while first < segment.end {
            let keys = Keys {
                from: segment.base.wrapping_add((first - segment.first) * segment.stride),
                stride: segment.stride,
                width: step.min(segment.end - first),
                head_dim: self.shape.head_dim,
                fresh_distance,
            };
            // SAFETY: the positions are within the segment.
            unsafe {
                if const { can_pair::<S, T>() } && self.pairs {
                    #[cfg(target_arch = "x86_64")]
                    if direct {
                        self.scores_of_pairs(keys, first, out, prefetcher);
                    } else {
                        self.scores_of_many_pairs(keys, first, out, prefetcher);
                    }
                } else if const { !S::IS_PORTABLE } && direct {
                    self.scores_direct(keys, first, out, prefetcher);
                } else {
                    self.scores_blocked(keys, first, out, prefetcher);
                }
            }
            first += keys.width;
        }
    }

    /// # Safety
    /// Same contract as [`Block::scores_direct`]; in addition, `T` is bf16, the machine has
    /// AVX512-BF16, and there are at most four queries.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn scores_of_pairs<T: Number>(
        &self,
        keys: Keys<T>,
        first: usize,
        out: Strided<*mut f32>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let Keys { stride, width, head_dim, fresh_distance, .. } = keys;
        let keys = Keys { from: keys.from.cast(), stride, width, head_dim, fresh_distance };
        macro_rules! tile {
            ($mr:literal) => {{
                let (to, stride) = (out.base.wrapping_add(first), out.stride);
                let scores = avx512_bf16::Scores { to, stride, scale: self.shape.scale };
                let seen = avx512_bf16::Seen::<$mr>::new(width, |i| self.visible(i, first, width));
                let queries = self.packed_queries(0);
                avx512_bf16::scores::<$mr>(&keys, queries, scores, &seen, Some(prefetcher));
            }};
        }
        // SAFETY: the caller's promise; the queries are packed in pairs.
        unsafe {
            match self.queries() {
                1 => tile!(1),
                2 => tile!(2),
                3 => tile!(3),
                _ => tile!(4),
            }
        }
    }

    /// # Safety
    /// Same contract as [`Block::scores`]; `keys` starts at position `first`.
    #[inline(always)]
    unsafe fn scores_direct<T: Number>(
        &self,
        keys: Keys<T>,
        first: usize,
        out: Strided<*mut f32>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let queries = self.packed_queries(0);
        if keys.width == 1 {
            // Transposition does not pay off for the fresh row of a decode step.
            for query in 0..self.queries() {
                // SAFETY: the caller's promise; the score is written only where it is visible.
                unsafe {
                    let sum = keys.single(self.s, self.packed_queries(query));
                    self.store_scores(&[[sum]], query, first, 1, out);
                }
            }
            return;
        }
        macro_rules! tile {
            ($mr:literal) => {{
                let sums = keys.few::<S, $mr>(self.s, queries, prefetcher);
                self.store_scores(&sums, 0, first, keys.width, out);
            }};
        }
        // SAFETY: the caller's promise; packed queries are padded.
        unsafe {
            match self.queries() {
                1 => tile!(1),
                2 => tile!(2),
                3 => tile!(3),
                _ => tile!(4),
            }
        }
    }

    /// # Safety
    /// Same contract as [`Block::scores_direct`].
    #[inline(always)]
    unsafe fn scores_blocked<T: Number>(
        &self,
        keys: Keys<T>,
        first: usize,
        out: Strided<*mut f32>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let odd = self.packed_queries(0).odd;
        // SAFETY: scratch has space for a block of whole slabs.
        unsafe { keys.transpose_block(self.s, self.transposed, odd, prefetcher) };
        let count = keys.half_elements::<S>();
        let queries = self.queries();
        let max_vectors = const { max_blocked_queries::<S, T>() };
        // As even as possible, so that no tile has too few accumulators.
        let tiles = queries.div_ceil(max_vectors);
        for tile in 0..tiles {
            let (query, end) = (tile * queries / tiles, (tile + 1) * queries / tiles);
            if !self.sees(query..end, first..first + keys.width) {
                continue;
            }
            macro_rules! tile {
                ($mr:literal) => {{
                    let q = self.packed_queries(query);
                    let sums = blocked::<S, T, $mr>(self.s, q, self.transposed, count);
                    let sums = &sums[..end - query];
                    self.store_scores(sums, query, first, keys.width, out);
                }};
            }
            // SAFETY: the caller's promise; the packed queries are padded and are followed by other
            // scratch: a tile with too many rows computes values that are not stored.
            unsafe {
                match end - query {
                    7.. if const { max_blocked_queries::<S, T>() == 8 } => tile!(8),
                    5.. if const { S::IS_WIDE } => tile!(6),
                    _ if const { S::IS_PORTABLE } => tile!(1),
                    _ => tile!(4),
                }
            }
        }
    }

    /// Writes the visible scores of a tile of queries starting at `query` and `width` positions
    /// starting at `first`.
    ///
    /// # Safety
    /// `out` has space for every query's visible positions.
    #[inline(always)]
    pub(super) unsafe fn store_scores<const NR: usize>(
        &self,
        sums: &[[S::F; NR]],
        query: usize,
        first: usize,
        width: usize,
        out: Strided<*mut f32>,
    ) {
        let Strided { base: out, stride } = out;
        let scale = self.s.splat(self.shape.scale);
        let last = query + sums.len() - 1;
        if width == NR * S::LANES && first >= self.start(last) && first + width <= self.limit(query)
        {
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    let to = out.wrapping_add((query + i) * stride + first + j * S::LANES);
                    // SAFETY: every query sees all of these positions.
                    unsafe { self.s.store(to, self.s.mul(*sum, scale)) };
                }
            }
            return;
        }
        // A copy, so that the sums themselves stay in registers.
        let mut copy = [[self.s.zero(); NR]; MAX_TILE_QUERIES];
        for (i, sums) in sums.iter().enumerate() {
            copy[i] = *sums;
        }
        let (block, sums, to) = (self, &copy[..sums.len()], Strided { base: out, stride });
        self.s.out_of_line(VisibleScores { block, sums, query, first, width, to });
    }

    /// Returns the subset of the `width` positions starting at `first` that a query sees.
    #[inline(always)]
    pub(super) fn visible(&self, query: usize, first: usize, width: usize) -> Range<usize> {
        let before = |position: usize| position.saturating_sub(first).min(width);
        before(self.start(query))..before(self.limit(query))
    }
}

/// Scores of a tile of which some queries see only a part, as at the end of a causal mask: a
/// function for all heights of tiles. The code that constructs one guarantees that `to` has space
/// for every query's visible positions.
struct VisibleScores<'a, S: Simd, const NR: usize> {
    block: &'a Block<'a, S>,
    /// Scores before they are scaled.
    sums: &'a [[S::F; NR]],
    query: usize,
    first: usize,
    width: usize,
    to: Strided<*mut f32>,
}

impl<S: Simd, const NR: usize> OutOfLine<S> for VisibleScores<'_, S, NR> {
    #[inline(always)]
    fn run(self, s: S) {
        let VisibleScores { block, sums, query, first, width, to } = self;
        let scale = s.splat(block.shape.scale);
        for (i, sums) in sums.iter().enumerate() {
            let visible = block.visible(query + i, first, width);
            for (j, sum) in sums.iter().enumerate() {
                let skipped = visible.start.saturating_sub(j * S::LANES);
                let width = visible.end.saturating_sub(j * S::LANES).min(S::LANES);
                if width > skipped {
                    // SAFETY: these positions are visible to the query.
                    unsafe {
                        let to = to.base.add((query + i) * to.stride + first + j * S::LANES);
                        store_between(s, to, s.mul(*sum, scale), skipped..width);
                    }
                }
            }
        }
    }
}

/// Returns true if bf16 caches may be multiplied in pairs ([`Block::pairs`]).
pub(super) const fn can_pair<S: Simd, T: Number>() -> bool {
    S::IS_WIDE && !T::IS_F32
}

/// Returns the maximum number of queries that are multiplied by a block of K together.
const fn max_blocked_queries<S: Simd, T: Number>() -> usize {
    if S::IS_PORTABLE {
        1
    } else if !S::IS_WIDE {
        4
    } else if chains::<S, T>() == 4 {
        // The result that four chains are added to takes registers too.
        6
    } else {
        8
    }
}
