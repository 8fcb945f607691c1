//! Readers of weights. They convert weights in memory to *units*: vectors whose lanes are output
//! columns, each multiplied by one broadcast value of x.
//!
//! A *panel* is `LANES` weight rows. A *chunk* of it is a few dword vectors, which expand to units
//! in the order of k. A *segment* is the length of one chain of multiply-adds; it is the same for
//! every batch size and thread count, which makes rows independent.

mod plain;
mod quant;

pub(crate) use plain::Plain;
pub(super) use plain::{PairsBf16, PlainBf16, PlainF32};
pub(crate) use quant::Records;
pub(super) use quant::{CodedRecords, Int4Records, Int8Records, record_ranges};

use super::prefetch::Lines;
use crate::simd::Simd;

/// A reader of weights of one format; see the module documentation.
pub trait WeightReader<S: Simd>: Copy {
    /// Units per dword vector.
    const UNITS: usize;
    /// Dword vectors per chunk: 1 or `LANES`.
    const DWORDS: usize;
    /// True if a chain ends with a scale and a minimum per column.
    const GROUPED: bool;

    /// Returns unit `index` of a dword vector.
    fn unit(s: S, d: S::D, index: usize) -> S::F;
    /// Returns the number of output columns.
    fn columns(self) -> usize;
    /// Returns the number of units along k.
    fn units(self) -> usize;
    /// Returns the number of units in a segment, a whole number of chunks; the last segment may be
    /// shorter.
    fn segment(self) -> usize;
    /// Returns true if all `LANES` columns of a panel can be read.
    fn is_full(self, panel: usize) -> bool;
    /// Returns a chunk of a panel.
    ///
    /// # Safety
    /// The panel is full, and all units of the chunk exist.
    unsafe fn chunk(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block;
    /// Returns a chunk like [`WeightReader::chunk`], with zeros for the columns and units that do
    /// not exist.
    ///
    /// # Safety
    /// The first column and unit exist.
    unsafe fn edge(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block;
    /// Prefetches memory that a later `chunk` reads.
    fn prefetch(self, s: S, panel: usize, segment: usize, index: usize);
    /// Returns the scale and minimum of a segment of a panel; zeros if the weights are not grouped.
    ///
    /// # Safety
    /// Both exist.
    unsafe fn scale(self, s: S, panel: usize, segment: usize) -> (S::F, S::F);
    /// Returns the cache lines of `panels` panels from `panel` on, for the units of one block.
    fn lines(self, panel: usize, panels: usize, block: usize) -> Lines;
}

/// Returns `total` after a finished segment.
///
/// # Safety
/// If the weights are `grouped`, `sum` points to the sum of the segment's x.
#[inline(always)]
pub(in crate::linear) unsafe fn combine<S: Simd>(
    s: S,
    grouped: bool,
    total: S::F,
    part: S::F,
    scale: S::F,
    min: S::F,
    sum: *const f32,
) -> S::F {
    if grouped {
        // SAFETY: the caller's promise.
        s.fma(min, s.splat(unsafe { *sum }), s.fma(scale, part, total))
    } else {
        s.add(total, part)
    }
}
