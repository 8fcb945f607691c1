//! Sum over a row's experts whose outputs are in memory.

use super::COLS_UNIT;
use crate::Kernels;
use crate::router::Routing;
use crate::scratch::SharedPointer;

/// Columns of a task.
const TASK_COLS: usize = 4 * COLS_UNIT;

impl Kernels {
    /// Computes `hidden += sum of weight * output` over each row's entries, with the rounding and
    /// the order of [`Kernels::expert_down`]. `outputs` is `[rows, top_k, n]`, and `hidden` is
    /// `[rows, n]`.
    ///
    /// # Panics
    /// Panics if lengths do not agree.
    pub fn combine_experts(
        &self,
        routing: &Routing<'_>,
        n: usize,
        outputs: &[f32],
        hidden: &mut [f32],
    ) {
        let (rows, top_k) = (routing.rows(), routing.top_k);
        assert_eq!(outputs.len(), rows * top_k * n, "outputs are [rows, top_k, n]");
        assert_eq!(hidden.len(), rows * n, "hidden is [rows, n]");
        let hidden = SharedPointer(hidden.as_mut_ptr());
        let blocks = n.div_ceil(TASK_COLS);
        self.run_linear(rows * blocks, &|task, _| {
            let (row, first) = (task / blocks, task % blocks * TASK_COLS);
            let cols = TASK_COLS.min(n - first);
            // SAFETY: needed since tasks share the rows. The columns are within the row, whose
            // length was asserted, and no other task has them.
            let hidden = unsafe {
                std::slice::from_raw_parts_mut(hidden.pointer().add(row * n + first), cols)
            };
            let mut totals = [0.0; TASK_COLS];
            for (j, routed) in routing.routed[row * top_k..(row + 1) * top_k].iter().enumerate() {
                let output = &outputs[(row * top_k + j) * n + first..][..cols];
                for (total, value) in totals.iter_mut().zip(output) {
                    let product = routed.weight * value;
                    *total = if j == 0 { product } else { *total + product };
                }
            }
            hidden.iter_mut().zip(totals).for_each(|(hidden, total)| *hidden += total);
        });
    }
}
