//! The interface of an algorithm that multiplies linears. `registry` lists them.

use half::bf16;
use model::quantized_format::{ActivationFormat, WeightFormat};

use super::pack::Pack;
use super::rows::RowTiles;
use super::task::Sums;
use crate::variant::Variant;

/// Operands of a pass, as far as they determine its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub rows: usize,
    /// Input width.
    pub k: usize,
    pub format: WeightFormat,
    pub activations: ActivationFormat,
}

/// Layout of a pass's packed x for a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedLayout {
    pub tiles: RowTiles,
    /// Units of a row.
    pub units: usize,
    /// Floats of a row that are stored after all packed rows: its sums over groups, or its factors.
    pub sums: usize,
}

/// A path: an algorithm that multiplies linears in bf16. It replaces the vector kernels of `task`
/// and stores its sums in the same memory.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) trait MultiplicationPath {
    /// Reader of the weights: [`Plain`](super::reader::Plain) or
    /// [`Records`](super::reader::Records).
    type Reader;

    /// Floats of a thread's scratch for sums that are not yet results.
    const UNFINISHED_LEN: usize = 0;

    /// Returns true if the path multiplies this shape with the instructions of `variant`. The
    /// format of `shape` is one that `Reader` reads.
    fn fits(variant: Variant, shape: Shape) -> bool;

    /// Returns the tiles and packed rows of a pass of a shape that fits.
    fn layout(shape: Shape) -> PackedLayout;

    /// Packs a range of blocks of one tile of rows.
    ///
    /// # Safety
    /// The machine has the instructions of a variant that fits; the task's own conditions hold.
    unsafe fn pack(task: &Pack<bf16>);

    /// Computes the sums of the task's columns and rows and stores them in its results.
    ///
    /// # Safety
    /// The conditions of [`MultiplicationPath::pack`] hold, and it has packed x. Instructions may
    /// be emulated.
    unsafe fn multiply(task: &Sums<Self::Reader>);
}
