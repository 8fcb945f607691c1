//! Rotary position embedding, rotate-half form, in place.

use crate::element::Element;
use crate::scratch::{ScratchLimits, Shared};
use crate::{Kernels, round_up};

/// Rows of one task.
const TASK_ROWS: usize = 4;

/// Floats of scratch per thread: a row's cosines and sines.
pub(crate) fn thread_len(limits: &ScratchLimits) -> usize {
    round_up(limits.head_dim, 16) + 16
}

impl Kernels {
    /// Rotates each pair `(x[i], x[i + head_dim/2])` of every head by `position * frequency[i]`,
    /// the angle, its sine and its cosine in f32.
    ///
    /// `x` is `[rows, heads, head_dim]`, `positions` `[rows]`, `inverse_frequencies`
    /// `[head_dim / 2]`.
    pub fn rope<T: Element>(
        &self,
        rows: usize,
        heads: usize,
        head_dim: usize,
        positions: &[u32],
        inverse_frequencies: &[f32],
        x: &mut [T],
    ) {
        let half = head_dim / 2;
        assert!(head_dim <= self.limits.head_dim, "head_dim is beyond the scratch limits");
        assert_eq!(head_dim, 2 * half, "head_dim is even");
        assert_eq!(positions.len(), rows, "positions has an entry per row");
        assert_eq!(inverse_frequencies.len(), half, "inverse_frequencies is [head_dim / 2]");
        assert_eq!(x.len(), rows * heads * head_dim, "x is [rows, heads, head_dim]");
        let row_elements = heads * head_dim;
        let bytes = 4 * rows * row_elements * size_of::<T>();
        let x = Shared(x.as_mut_ptr());
        let per_thread = &self.per_thread;
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, thread| {
            // SAFETY: this thread's scratch holds `head_dim` floats and more.
            let table = unsafe { std::slice::from_raw_parts_mut(per_thread.of(thread), head_dim) };
            let (cosines, sines) = table.split_at_mut(half);
            let first = task * TASK_ROWS;
            for (row, position) in positions.iter().enumerate().skip(first).take(TASK_ROWS) {
                let position = *position as f32;
                for (index, frequency) in inverse_frequencies.iter().enumerate() {
                    let angle = position * frequency;
                    (sines[index], cosines[index]) = angle.sin_cos();
                }
                // SAFETY: the row lies within x, and no other task touches it.
                let x = unsafe {
                    std::slice::from_raw_parts_mut(
                        x.pointer().add(row * row_elements),
                        row_elements,
                    )
                };
                for head in x.chunks_exact_mut(head_dim) {
                    rotate(head, cosines, sines);
                }
            }
        });
    }
}

/// One head. Plain code: it touches each element once and the compiler vectorises it.
fn rotate<T: Element>(head: &mut [T], cosines: &[f32], sines: &[f32]) {
    let (low, high) = head.split_at_mut(cosines.len());
    for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(cosines.iter().zip(sines)) {
        let (a, b) = (low.to_f32(), high.to_f32());
        *low = T::from_f32(a * cos - b * sin);
        *high = T::from_f32(b * cos + a * sin);
    }
}
