//! Tasks of layers with a recurrent state, compiled in this crate once per number format; see
//! `linear::compiled`.

use half::bf16;

use super::convolution::ConvolutionPart;
use super::recurrence::HeadRows;
use super::rule::DeltaRule;
use super::scan::Scan;
use super::shared_gate::GatedRow;
use crate::number::Number;
use crate::variant::{Variant, dispatch};

/// Tasks of layers with a state for one number format; see the module header.
pub trait DeltaTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn convolve(variant: Variant, task: ConvolutionPart<Self>);
    /// # Safety
    /// Same contract as [`DeltaTasks::convolve`].
    unsafe fn follow_rule(variant: Variant, task: HeadRows<DeltaRule<Self, false>>);
    /// # Safety
    /// Same contract as [`DeltaTasks::convolve`].
    unsafe fn follow_channel_rule(variant: Variant, task: HeadRows<DeltaRule<Self, true>>);
    /// # Safety
    /// Same contract as [`DeltaTasks::convolve`].
    unsafe fn scan(variant: Variant, task: HeadRows<Scan<Self>>);
    /// # Safety
    /// Same contract as [`DeltaTasks::convolve`].
    unsafe fn weigh(variant: Variant, task: GatedRow<'_, Self>);
}

macro_rules! delta_tasks {
    ($number:ty) => {
        impl DeltaTasks for $number {
            #[inline(never)]
            unsafe fn convolve(variant: Variant, task: ConvolutionPart<Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn follow_rule(variant: Variant, task: HeadRows<DeltaRule<Self, false>>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn follow_channel_rule(variant: Variant, task: HeadRows<DeltaRule<Self, true>>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn scan(variant: Variant, task: HeadRows<Scan<Self>>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }

            #[inline(never)]
            unsafe fn weigh(variant: Variant, task: GatedRow<'_, Self>) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { dispatch(variant, task) }
            }
        }
    };
}

delta_tasks!(f32);
delta_tasks!(bf16);
