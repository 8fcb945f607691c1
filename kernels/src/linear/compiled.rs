//! The tasks of a linear, compiled once per number format and in this crate.
//!
//! The entry points are generic, so callers compile copies of them. The functions that they call
//! are not generic, so the performance-critical code is compiled once, with this crate's
//! optimisation level, regardless of the caller's profile. Paths of single variants are also
//! entered here.

use half::bf16;

use super::pack::Pack;
use super::reader::{Plain, Records};
use super::registry::Path;
use super::task::{EpilogueTask, Sums};
use crate::number::Number;
use crate::variant::{Variant, dispatch};

/// The tasks of a linear for one number format.
pub trait LinearTasks: Number {
    /// Packs activations.
    ///
    /// # Safety
    /// `variant` is available, the path fits it, and the task's own conditions hold.
    unsafe fn pack(variant: Variant, path: Path, task: Pack<Self>);
    /// Computes the sums of plain weights.
    ///
    /// # Safety
    /// The conditions of [`LinearTasks::pack`] hold.
    unsafe fn plain(variant: Variant, path: Path, task: Sums<Plain<Self>>);
    /// Computes the sums of grouped weights.
    ///
    /// # Safety
    /// The conditions of [`LinearTasks::pack`] hold.
    unsafe fn grouped(variant: Variant, path: Path, task: Sums<Records>);
    /// Computes the outputs from the sums.
    ///
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn finish(variant: Variant, task: EpilogueTask<Self>);
}

impl LinearTasks for f32 {
    #[inline(never)]
    unsafe fn pack(variant: Variant, _: Path, task: Pack<Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }

    #[inline(never)]
    unsafe fn plain(variant: Variant, _: Path, task: Sums<Plain<Self>>) {
        // SAFETY: as above.
        unsafe { dispatch(variant, task) }
    }

    #[inline(never)]
    unsafe fn grouped(variant: Variant, _: Path, task: Sums<Records>) {
        // SAFETY: as above.
        unsafe { dispatch(variant, task) }
    }

    #[inline(never)]
    unsafe fn finish(variant: Variant, task: EpilogueTask<Self>) {
        // SAFETY: as above.
        unsafe { dispatch(variant, task) }
    }
}

impl LinearTasks for bf16 {
    #[inline(never)]
    unsafe fn pack(variant: Variant, path: Path, task: Pack<Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { path.pack(variant, task) }
    }

    #[inline(never)]
    unsafe fn plain(variant: Variant, path: Path, task: Sums<Plain<Self>>) {
        // SAFETY: as above.
        unsafe { path.plain(variant, task) }
    }

    #[inline(never)]
    unsafe fn grouped(variant: Variant, path: Path, task: Sums<Records>) {
        // SAFETY: as above.
        unsafe { path.grouped(variant, task) }
    }

    #[inline(never)]
    unsafe fn finish(variant: Variant, task: EpilogueTask<Self>) {
        // SAFETY: as above.
        unsafe { dispatch(variant, task) }
    }
}
