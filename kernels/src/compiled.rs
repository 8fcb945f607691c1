//! The vector tasks, compiled once per element type and in this crate.
//!
//! The entry points are generic, so callers compile their own copy of them; what they call here is
//! not, so the code that matters is built once, with this crate's optimisation level, whatever the
//! profile of the caller.

use half::bf16;

use crate::attention::BlockTask;
use crate::linear::form::{Plain, Records};
use crate::linear::{Finish, Pack, Sums};
#[cfg(target_arch = "x86_64")]
use crate::linear::{amx, integers, quarters};
use crate::norm::NormRow;
use crate::rope::RopeRow;
use crate::variant::{Variant, dispatch, dispatch_pairs};

/// Each task for one element type; part of what seals [`crate::Element`].
pub trait Compiled: Sized {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn pack(variant: Variant, task: Pack<Self>);
    /// # Safety
    /// As [`Compiled::pack`].
    unsafe fn linear_plain(variant: Variant, task: Sums<Plain<Self>>);
    /// # Safety
    /// As [`Compiled::pack`].
    unsafe fn linear_grouped(variant: Variant, task: Sums<Records>);
    /// # Safety
    /// As [`Compiled::pack`].
    unsafe fn linear_finish(variant: Variant, task: Finish<Self>);
    /// # Safety
    /// As [`Compiled::pack`].
    unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>);
    /// # Safety
    /// As [`Compiled::pack`].
    unsafe fn rope_row(variant: Variant, task: RopeRow<'_, Self>);
    /// # Safety
    /// As [`Compiled::pack`].
    unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>);
}

/// # Safety
/// As [`Compiled::pack`].
unsafe fn pack_bf16(variant: Variant, task: Pack<bf16>) {
    match variant {
        // SAFETY: the caller's promise is the callee's.
        #[cfg(target_arch = "x86_64")]
        _ if task.is_in_integers() => unsafe { integers::pack(&task) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Variant::Avx512 if task.is_in_quarters() => unsafe { quarters::pack(&task) },
        // SAFETY: as above.
        _ if task.is_grouped() => unsafe { dispatch(variant, task) },
        // SAFETY: as above.
        _ => unsafe { dispatch_pairs(variant, task) },
    }
}

/// # Safety
/// As [`Compiled::pack`].
unsafe fn plain_bf16(variant: Variant, task: Sums<Plain<bf16>>) {
    match variant {
        // SAFETY: the caller's promise is the callee's.
        #[cfg(target_arch = "x86_64")]
        Variant::Amx => unsafe { amx::linear_plain(&task) },
        // SAFETY: as above; x was packed for it.
        #[cfg(target_arch = "x86_64")]
        Variant::Avx512 if task.is_in_quarters() => unsafe { quarters::linear_plain(&task) },
        // SAFETY: as above.
        _ => unsafe { dispatch_pairs(variant, task) },
    }
}

/// # Safety
/// As [`Compiled::pack`].
unsafe fn grouped_bf16(variant: Variant, task: Sums<Records>) {
    #[cfg(target_arch = "x86_64")]
    if task.is_in_integers() {
        // SAFETY: the caller's promise; x was packed for it.
        return unsafe { integers::linear_grouped(&task) };
    }
    // SAFETY: as above.
    unsafe { dispatch(variant, task) }
}

macro_rules! compile_for {
    ($element:ty, $pack:ident, $plain:ident, $grouped:ident) => {
        impl Compiled for $element {
            #[inline(never)]
            unsafe fn pack(variant: Variant, task: Pack<Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $pack(variant, task) }
            }

            #[inline(never)]
            unsafe fn linear_plain(variant: Variant, task: Sums<Plain<Self>>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $plain(variant, task) }
            }

            #[inline(never)]
            unsafe fn linear_grouped(variant: Variant, task: Sums<Records>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $grouped(variant, task) }
            }

            #[inline(never)]
            unsafe fn linear_finish(variant: Variant, task: Finish<Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn rope_row(variant: Variant, task: RopeRow<'_, Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }
        }
    };
}

compile_for!(f32, dispatch, dispatch, dispatch);
compile_for!(bf16, pack_bf16, plain_bf16, grouped_bf16);
