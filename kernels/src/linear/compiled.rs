//! The tasks of a linear, compiled once per number format and in this crate.
//!
//! The entry points are generic, so callers compile their own copy of them; what they call here is
//! not, so the code that matters is built once, with this crate's optimisation level, whatever the
//! profile of the caller. Here is also where the paths of single variants are entered.

use half::bf16;

use super::pack::Pack;
use super::reader::{Plain, Records};
use super::registry::Path;
use super::task::{Finish, Sums};
use crate::number::Number;
use crate::variant::{Variant, dispatch};

/// The tasks for one number format.
pub trait LinearTasks: Number {
    /// # Safety
    /// `variant` is available, the path fits it, and the task's own conditions hold.
    unsafe fn pack(variant: Variant, path: Path, task: Pack<Self>);
    /// # Safety
    /// As [`LinearTasks::pack`].
    unsafe fn plain(variant: Variant, path: Path, task: Sums<Plain<Self>>);
    /// # Safety
    /// As [`LinearTasks::pack`].
    unsafe fn grouped(variant: Variant, path: Path, task: Sums<Records>);
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn finish(variant: Variant, task: Finish<Self>);
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
    unsafe fn finish(variant: Variant, task: Finish<Self>) {
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
    unsafe fn finish(variant: Variant, task: Finish<Self>) {
        // SAFETY: as above.
        unsafe { dispatch(variant, task) }
    }
}
