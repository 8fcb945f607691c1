//! What an algorithm that multiplies linears has to offer. `registry` lists them.

use half::bf16;
use model::compressed::WeightFormat;

use super::pack::Pack;
use super::rows::RowTiles;
use super::task::Sums;
use crate::variant::Variant;

/// What a pass multiplies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub rows: usize,
    /// Input width.
    pub k: usize,
    pub format: WeightFormat,
}

/// How x of a pass is packed for a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedLayout {
    pub tiles: RowTiles,
    /// Units of a row.
    pub units: usize,
    /// Floats that a row has behind all packed rows: its sums over groups, or its factors.
    pub sums: usize,
}

/// A path: an algorithm that multiplies linears in bf16. It takes the place of the vectors of
/// `task` and leaves its sums where these do.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) trait MultiplicationPath {
    /// Reads the weights: [`Plain`](super::reader::Plain) or [`Records`](super::reader::Records).
    type Reader;

    /// Floats of a thread's scratch for sums that are not results yet.
    const UNFINISHED_LEN: usize = 0;

    /// Whether it multiplies this shape with these instructions. Its format is one that `Reader`
    /// reads.
    fn fits(variant: Variant, shape: Shape) -> bool;

    /// The tiles and packed rows of a pass of a shape that fits.
    fn layout(shape: Shape) -> PackedLayout;

    /// Packs a range of blocks of one tile of rows.
    ///
    /// # Safety
    /// The machine has the instructions of a variant that fits; the task's own conditions hold.
    unsafe fn pack(task: &Pack<bf16>);

    /// Leaves the sums of the task's columns and rows in its results.
    ///
    /// # Safety
    /// As [`MultiplicationPath::pack`], which has packed x. Instructions may be emulated.
    unsafe fn multiply(task: &Sums<Self::Reader>);
}
