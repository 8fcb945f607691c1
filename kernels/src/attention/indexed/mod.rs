//! Attention of rows to positions that an indexer selects ("DeepSeek sparse attention", see
//! `model::indexer`).
//!
//! A cached *place* has the vector that heads attend to, followed by the indexer's key. `select`
//! scores all positions up to a row's own and lists those with the highest scores; `attend` copies
//! the vectors of the listed positions to contiguous memory, in ascending order, and the kernels
//! for whole caches attend to them as positions of a sequence that has no others. A row with no
//! more positions than are selected therefore has the bits of attention to all of them.
//!
//! Every row selects independently. Scores are those of `Kernels::scores`, and their weighted sum
//! adds head after head, so a selection depends on nothing but the row and the keys.

mod attend;
mod places;
mod select;

use super::shape::AttentionUnit;
use crate::number::Number;
use crate::scratch::{AlignedBuffer, ScratchLimits, ThreadScratch};

pub use attend::AttentionPart;
pub(in crate::attention) use attend::{Call, ListedVectors};
pub use places::IndexedPlaces;
pub(in crate::attention) use select::{ScoredKeys, Scoring, rows_within};

/// Minimum number of scores that are computed at a time, as far as there are rows.
const MIN_SCORES: usize = 1 << 20;
/// Maximum bytes of vectors that are copied at a time, unless the threads need more.
const MAX_WAVE_BYTES: usize = 64 << 20;
/// Maximum number of units of a wave.
const MAX_WAVE_UNITS: usize = 32;

/// Sizes of an indexer and of the places of its cache, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedShape {
    /// Size of the vector that heads attend to, at the start of a place.
    pub vector: usize,
    /// Size of a place: the vector, then the indexer's key if the layer has an indexer.
    pub place: usize,
    /// Heads of the indexer.
    pub heads: usize,
    /// Size of a query of a head of the indexer, and of its key.
    pub head_dim: usize,
    /// Maximum number of positions that a row attends to, at least 1.
    pub top_k: usize,
}

/// Scratch of selections and of attention to them, which is allocated once.
#[derive(Debug)]
pub struct IndexedScratch {
    pub(super) limits: ScratchLimits,
    pub(super) shape: IndexedShape,
    /// Bytes of an element of the largest type.
    pub(super) element_bytes: usize,
    /// Keys of cached positions of a wave of units, or their selected vectors.
    pub(super) gathered: AlignedBuffer,
    /// Keys or vectors of the call's rows, which follow the gathered ones.
    pub(super) fresh: AlignedBuffer,
    pub(super) scores: AlignedBuffer,
    /// A row's scores and the order of its positions.
    pub(super) per_thread: ThreadScratch,
    pub(super) units: Vec<AttentionUnit>,
    /// Part of a unit's rows that a unit of the wave has, and the source of its positions.
    pub(super) pieces: Vec<Piece>,
    /// Maximum number of units of a wave of attention.
    pub(super) wave: usize,
    /// Number of gathered vectors that each unit of a wave has space for.
    pub(super) selected: usize,
}

/// Consecutive rows of a unit that a wave computes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Index of the unit in the call.
    index: usize,
    unit: AttentionUnit,
    /// First of the unit's rows.
    first: usize,
    rows: usize,
}

impl Piece {
    /// Returns rows of a unit of a call.
    pub(super) const fn new(index: usize, unit: AttentionUnit, first: usize, rows: usize) -> Piece {
        Piece { index, unit, first, rows }
    }

    /// Returns the index of the unit in the call.
    pub(super) const fn index(&self) -> usize {
        self.index
    }

    /// Returns the position of the first row.
    pub(super) const fn position(&self) -> usize {
        self.unit.past as usize + self.first
    }

    /// Returns the index of the first row among those of the call.
    const fn row(&self) -> usize {
        self.unit.row0 as usize + self.first
    }
}

impl IndexedScratch {
    /// Allocates scratch for calls within `limits` on `threads` threads, whose elements have at
    /// most `element_bytes` bytes. `shape` is that of a layer with an indexer.
    ///
    /// # Panics
    /// If no position is selected, or heads exceed the limits.
    pub fn new(
        shape: IndexedShape,
        threads: usize,
        limits: &ScratchLimits,
        element_bytes: usize,
    ) -> IndexedScratch {
        let selected = shape.top_k.min(limits.positions.max(1));
        IndexedScratch::with_selected(shape, selected, threads, limits, element_bytes)
    }

    /// Allocates scratch like [`IndexedScratch::new`], with space for `selected` vectors of each
    /// row.
    pub(super) fn with_selected(
        shape: IndexedShape,
        selected: usize,
        threads: usize,
        limits: &ScratchLimits,
        element_bytes: usize,
    ) -> IndexedScratch {
        let IndexedShape { vector, heads, head_dim, top_k, .. } = shape;
        assert!(top_k > 0, "a row attends to a position");
        let is_within = heads <= limits.group && vector.max(head_dim) <= limits.head_dim;
        assert!(is_within, "heads of the indexer are beyond the scratch limits");
        let unit_bytes = selected * vector * element_bytes;
        let wave = MAX_WAVE_BYTES / unit_bytes.max(1);
        let wave = wave.clamp(threads.max(1), MAX_WAVE_UNITS.max(threads));
        let keys_bytes = limits.positions * head_dim * element_bytes;
        let fresh_bytes = limits.rows * vector.max(head_dim) * element_bytes;
        IndexedScratch {
            limits: *limits,
            shape,
            element_bytes,
            gathered: AlignedBuffer::new((wave * unit_bytes).max(keys_bytes).div_ceil(4)),
            fresh: AlignedBuffer::new(fresh_bytes.div_ceil(4)),
            scores: AlignedBuffer::new((heads * limits.positions).max(MIN_SCORES)),
            per_thread: ThreadScratch::new(threads, 2 * limits.positions),
            units: Vec::with_capacity(MAX_WAVE_UNITS.max(threads)),
            pieces: Vec::with_capacity(MAX_WAVE_UNITS.max(threads)),
            wave,
            selected,
        }
    }

    /// Checks that a call satisfies the assumptions of the scratch.
    ///
    /// # Panics
    /// If units have several heads or rings, or exceed the scratch.
    fn check<T: Number>(&self, shape: &IndexedShape, units: &[AttentionUnit], rows: usize) {
        let IndexedShape { vector, heads, head_dim, top_k, .. } = self.shape;
        let is_same = (shape.vector, shape.heads, shape.head_dim, shape.top_k)
            == (vector, heads, head_dim, top_k);
        assert!(is_same, "the scratch is of an indexer of these sizes");
        assert!(size_of::<T>() <= self.element_bytes, "elements are beyond the scratch");
        assert!(rows <= self.limits.rows, "rows are beyond the scratch limits");
        for unit in units {
            let is_whole = unit.kv_head == 0 && unit.cache_positions == 0;
            assert!(is_whole, "a unit is a sequence with one whole cache");
            assert!(unit.positions() <= self.limits.positions, "positions beyond the scratch");
            assert!(unit.row0 as usize + unit.rows as usize <= rows, "units lie within the rows");
        }
    }
}

/// Returns the number of a unit's first rows that attend to all positions up to their own.
fn dense_rows(unit: &AttentionUnit, top_k: usize) -> usize {
    top_k.saturating_sub(unit.past as usize).min(unit.rows as usize)
}

/// Returns the index of the list that the `task`-th element of consecutive lists is in, and its
/// index there.
fn nth_of(task: usize, lengths: impl Iterator<Item = usize>) -> (usize, usize) {
    let mut before = 0;
    for (index, length) in lengths.enumerate() {
        if task < before + length {
            return (index, task - before);
        }
        before += length;
    }
    panic!("there are as many tasks as elements");
}

/// Returns the first `len` elements of scratch.
///
/// # Safety
/// Nothing writes them while the slice lives.
unsafe fn elements<T: Number>(buffer: &AlignedBuffer, len: usize) -> &[T] {
    assert!(len * size_of::<T>() <= buffer.len() * size_of::<f32>(), "scratch holds the elements");
    // SAFETY: the buffer is aligned to 64 bytes, its bytes are initialised, and any bytes are an
    // element; the caller promises that nothing writes them.
    unsafe { std::slice::from_raw_parts(buffer.as_mut_ptr().cast(), len) }
}
