//! The tasks of a linear, compiled once per number format and in this crate.
//!
//! The entry points are generic, so callers compile their own copy of them; what they call here is
//! not, so the code that matters is built once, with this crate's optimisation level, whatever the
//! profile of the caller. Here is also where a variant's own way through the weights is entered.

use half::bf16;

use super::form::{Plain, Records};
use super::pack::Pack;
#[cfg(target_arch = "x86_64")]
use super::rows::Way;
use super::task::{Finish, Sums};
#[cfg(target_arch = "x86_64")]
use super::{amx, dots, integers, quarters};
use crate::number::Number;
use crate::variant::{Variant, dispatch};

/// The tasks for one number format.
pub trait LinearTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn pack(variant: Variant, task: Pack<Self>);
    /// # Safety
    /// As [`LinearTasks::pack`].
    unsafe fn plain(variant: Variant, task: Sums<Plain<Self>>);
    /// # Safety
    /// As [`LinearTasks::pack`].
    unsafe fn grouped(variant: Variant, task: Sums<Records>);
    /// # Safety
    /// As [`LinearTasks::pack`].
    unsafe fn finish(variant: Variant, task: Finish<Self>);
}

impl LinearTasks for f32 {
    #[inline(never)]
    unsafe fn pack(variant: Variant, task: Pack<Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }

    #[inline(never)]
    unsafe fn plain(variant: Variant, task: Sums<Plain<Self>>) {
        // SAFETY: as above.
        unsafe { dispatch(variant, task) }
    }

    #[inline(never)]
    unsafe fn grouped(variant: Variant, task: Sums<Records>) {
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
    unsafe fn pack(variant: Variant, task: Pack<Self>) {
        match task.tiles.way {
            // SAFETY: the caller's promise is the callee's.
            #[cfg(target_arch = "x86_64")]
            Way::Integers | Way::IntegerTiles => unsafe { integers::pack(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Quarters => unsafe { quarters::pack(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Dots => unsafe { dots::pack(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Amx => unsafe { amx::pack(&task) },
            // SAFETY: as above.
            Way::Vectors => unsafe { dispatch(variant, task) },
        }
    }

    #[inline(never)]
    unsafe fn plain(variant: Variant, task: Sums<Plain<Self>>) {
        match task.area.tiles.way {
            // SAFETY: the caller's promise; x was packed for it.
            #[cfg(target_arch = "x86_64")]
            Way::Amx => unsafe { amx::plain(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Quarters => unsafe { quarters::plain(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Dots => unsafe { dots::plain(&task) },
            // SAFETY: as above.
            _ => unsafe { dispatch(variant, task) },
        }
    }

    #[inline(never)]
    unsafe fn grouped(variant: Variant, task: Sums<Records>) {
        match task.area.tiles.way {
            // SAFETY: the caller's promise; x was packed for it.
            #[cfg(target_arch = "x86_64")]
            Way::Integers | Way::IntegerTiles => unsafe { integers::grouped(&task) },
            // SAFETY: as above.
            _ => unsafe { dispatch(variant, task) },
        }
    }

    #[inline(never)]
    unsafe fn finish(variant: Variant, task: Finish<Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}
