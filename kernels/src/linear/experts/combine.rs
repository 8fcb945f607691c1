//! The weighted sum over a row's experts, in ascending order of experts, and its addition to the
//! residual at the last of them.

use crate::linear::sizes::RESULT_STRIDE;
use crate::linear::task::TaskOperands;
use crate::router::RoutedExpert;
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::variant::{SimdTask, Variant, dispatch};

/// Adds the sums of a task, which belong to one expert's rows, to the totals of these rows.
#[derive(Debug)]
pub(super) struct Combine {
    pub area: TaskOperands,
    /// Output width.
    pub n: usize,
    /// The expert's bias.
    pub bias: Option<*const f32>,
    /// Routing entry `row * top_k + j` of each of the expert's rows.
    pub slots: *const u32,
    /// `[rows, top_k]`.
    pub routed: *const RoutedExpert,
    pub top_k: usize,
    /// `[rows, n]`: sums over the preceding experts.
    pub totals: *mut f32,
    /// `[rows, n]`.
    pub residual: *mut f32,
}

/// Runs the task. Compiled once, in this crate.
///
/// # Safety
/// The variant is available; the sums of the task's rows and columns are complete; no other thread
/// accesses these columns of totals and residual; the other pointers are valid as described.
#[inline(never)]
pub(super) unsafe fn combine(variant: Variant, task: Combine) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(variant, task) }
}

impl SimdTask for Combine {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Combine { ref area, n, bias, slots, routed, top_k, .. } = self;
        for row in 0..area.tiles.rows {
            // SAFETY: the expert has these rows; entries are within the routing, and rows and
            // columns within totals and residual.
            unsafe {
                let slot = *slots.add(row) as usize;
                let sums = area.results().add(row * RESULT_STRIDE);
                let bias = bias.map(|bias| bias.add(area.cols.start));
                let weight = s.splat((*routed.add(slot)).weight);
                let at = slot / top_k * n + area.cols.start;
                self.add(s, sums, bias, weight, at, slot % top_k);
            }
        }
    }
}

impl Combine {
    /// Adds `weight * (sum + bias)` of the task's columns, as entry `j` of a row whose columns
    /// start at element `at`.
    ///
    /// # Safety
    /// The conditions of [`combine`] hold.
    #[inline(always)]
    unsafe fn add<S: Simd>(
        &self,
        s: S,
        sums: *const f32,
        bias: Option<*const f32>,
        weight: S::F,
        at: usize,
        j: usize,
    ) {
        let count = self.area.cols.len();
        for first in (0..count).step_by(S::LANES) {
            let width = S::LANES.min(count - first);
            // SAFETY: `width` sums, biases, totals and values of the residual remain from `first`.
            unsafe {
                let mut value = load_up_to(s, sums.add(first), width);
                if let Some(bias) = bias {
                    value = s.add(value, load_up_to(s, bias.add(first), width));
                }
                let total = self.totals.add(at + first);
                let mut sum = s.mul(weight, value);
                if j > 0 {
                    sum = s.add(load_up_to(s, total.cast_const(), width), sum);
                }
                if j + 1 < self.top_k {
                    store_up_to(s, total, sum, width);
                } else {
                    let residual = self.residual.add(at + first);
                    let sum = s.add(load_up_to(s, residual.cast_const(), width), sum);
                    store_up_to(s, residual, sum, width);
                }
            }
        }
    }
}
