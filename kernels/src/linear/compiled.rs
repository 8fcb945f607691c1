//! The tasks of a linear, compiled once per number format and in this crate.
//!
//! The entry points are generic, so callers compile their own copy of them; what they call here is
//! not, so the code that matters is built once, with this crate's optimisation level, whatever the
//! profile of the caller. Here is also where the paths of single variants are entered.

use half::bf16;

use super::pack::Pack;
use super::reader::{Plain, Records};
#[cfg(target_arch = "x86_64")]
use super::rows::Path;
use super::task::{Finish, Sums};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512, avx512_bf16, integers};
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
        match task.tiles.path {
            // SAFETY: the caller's promise is the callee's.
            #[cfg(target_arch = "x86_64")]
            Path::Integers | Path::IntegerTiles => unsafe { integers::pack(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe { avx512::pack(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 => unsafe { avx512_bf16::pack(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Amx => unsafe { amx::pack(&task) },
            // SAFETY: as above.
            Path::Vectors => unsafe { dispatch(variant, task) },
        }
    }

    #[inline(never)]
    unsafe fn plain(variant: Variant, task: Sums<Plain<Self>>) {
        match task.area.tiles.path {
            // SAFETY: the caller's promise; x was packed for it.
            #[cfg(target_arch = "x86_64")]
            Path::Amx => unsafe { amx::plain(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe { avx512::plain(&task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 => unsafe { avx512_bf16::plain(&task) },
            // SAFETY: as above.
            _ => unsafe { dispatch(variant, task) },
        }
    }

    #[inline(never)]
    unsafe fn grouped(variant: Variant, task: Sums<Records>) {
        match task.area.tiles.path {
            // SAFETY: the caller's promise; x was packed for it.
            #[cfg(target_arch = "x86_64")]
            Path::Integers | Path::IntegerTiles => unsafe { integers::grouped(&task) },
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
