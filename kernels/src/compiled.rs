//! The vector tasks, compiled once per element type and in this crate.
//!
//! The entry points are generic, so callers compile their own copy of them; what they call here is
//! not, so the code that matters is built once, with this crate's optimisation level, whatever the
//! profile of the caller.

use half::bf16;

use crate::attention::BlockTask;
use crate::linear::form::{Plain, Records};
use crate::linear::{Finish, Pack, Sums};
use crate::norm::NormRow;
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
    unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>);
}

macro_rules! compile_for {
    ($element:ty, $linear:ident) => {
        impl Compiled for $element {
            #[inline(never)]
            unsafe fn pack(variant: Variant, task: Pack<Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $linear(variant, task) }
            }

            #[inline(never)]
            unsafe fn linear_plain(variant: Variant, task: Sums<Plain<Self>>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $linear(variant, task) }
            }

            #[inline(never)]
            unsafe fn linear_grouped(variant: Variant, task: Sums<Records>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $linear(variant, task) }
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
            unsafe fn attention_block(variant: Variant, task: BlockTask<'_, Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }
        }
    };
}

compile_for!(f32, dispatch);
compile_for!(bf16, dispatch_pairs);
