//! Linears of a mixture of experts. The weights of all experts are contiguous, `[experts, n, k]`;
//! each row of a routing's `[rows, top_k]` entries is multiplied by the matrix of its expert.
//!
//! Rows are grouped by expert, gathered and packed once per call; one run of the pool processes all
//! experts' columns, and an expert's weights are read once for all its rows. An entry has the bits
//! of an ordinary linear of its row and its expert's matrix.
//!
//! - `groups`: the rows of each expert; `parts`: each expert's rows as an ordinary linear.
//! - `places`: experts that are not stored one after the other.
//! - `combine`: weighted sums over a row's experts; `outputs`: those of outputs in memory.
//! - `workspace`: the scratch.

mod combine;
mod groups;
mod outputs;
mod parts;
mod places;
mod workspace;

pub(super) use parts::padded_len;
pub use places::{ExpertPlaces, SharedExperts};
pub use workspace::ExpertLimits;
pub(crate) use workspace::Workspace;

use std::ops::Range;

use model::quantized_format::{Grouped, WeightFormat};

use super::call::{Weight, check_format};
use super::compiled::LinearTasks;
use super::epilogue::{Epilogue, LinearOut};
use super::sizes::PANELS;
use super::task::EpilogueTask;
use super::tuning::PARALLEL_PACK;
use crate::Kernels;
use crate::router::{RoutedExpert, Routing};
use crate::scratch::SharedPointer;
use crate::simd::MAX_LANES;
use combine::{Combine, combine};
use parts::{ExpertPass, PassPlan};

/// Columns of the narrowest task of `expert_down`, and a divisor of those of all other tasks.
const COLS_UNIT: usize = PANELS * MAX_LANES;
/// Tasks of `expert_down` per thread.
const DOWN_TASKS: usize = 2;

/// The weights of all experts.
#[derive(Debug, Clone, Copy)]
pub enum ExpertWeight<'a, T> {
    /// `[experts, n, k]`; fastest on a 64-byte boundary.
    Plain(&'a [T]),
    /// `format.size_bytes(n, k)` bytes of records for each expert, consecutively. If `n` is not a
    /// multiple of 16, the rows of each expert are padded separately.
    Grouped(Grouped, &'a [u8]),
    /// Matrices at places ([`RoutedLinear::places`]), on boundaries of plain elements.
    Shared(SharedExperts<'a>),
}

impl<T> ExpertWeight<'_, T> {
    pub(super) fn checked(&self, experts: usize, n: usize, k: usize) -> Weight<T> {
        match *self {
            ExpertWeight::Plain(weight) => {
                assert_eq!(weight.len(), experts * n * k, "weight is [experts, n, k]");
                Weight::Plain(weight.as_ptr())
            }
            ExpertWeight::Grouped(format, records) => {
                check_format(format);
                let len = experts * format.size_bytes(n, k);
                assert_eq!(records.len(), len, "records hold [experts, n, k]");
                Weight::Grouped(format, records.as_ptr())
            }
            ExpertWeight::Shared(_) => panic!("experts in shared memory have places"),
        }
    }

    /// Returns the weights of experts at `places`, of which the `used` ones are read.
    fn checked_at(
        &self,
        places: &ExpertPlaces<'_>,
        used: impl Iterator<Item = usize>,
        n: usize,
        k: usize,
    ) -> Weight<T> {
        let ExpertWeight::Shared(SharedExperts { format, first, len_bytes, .. }) = *self else {
            panic!("experts at places are in shared memory")
        };
        let (weight, matrix_bytes, align) = match format {
            WeightFormat::Plain => {
                assert!(first.cast::<T>().is_aligned(), "elements are aligned");
                (Weight::Plain(first.cast()), n * k * size_of::<T>(), align_of::<T>())
            }
            WeightFormat::Grouped(format) => {
                check_format(format);
                (Weight::Grouped(format, first), format.size_bytes(n, k), 1)
            }
        };
        let check = |at: usize, bytes: usize, align: usize| {
            let end = at.checked_add(bytes);
            let is_inside = end.is_some_and(|end| end <= len_bytes) && at.is_multiple_of(align);
            assert!(is_inside, "an expert at byte {at} is outside of {len_bytes} bytes of weights");
        };
        for expert in used {
            check(places.matrices[expert], matrix_bytes, align);
            if let Some(biases) = places.biases {
                check(biases[expert], n * size_of::<f32>(), align_of::<f32>());
            }
        }
        weight
    }
}

/// A linear of every expert, and the routing that assigns rows to experts.
#[derive(Debug, Clone, Copy)]
pub struct RoutedLinear<'a, T> {
    pub routing: Routing<'a>,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    pub weight: ExpertWeight<'a, T>,
    /// `[experts, n]`; `None` without biases, or if `places` has them.
    pub bias: Option<&'a [f32]>,
    /// `None` if the weights are those of all experts, one after the other.
    pub places: Option<ExpertPlaces<'a>>,
    /// Flags of the experts that are computed, `None` for all. Outputs of other experts' entries
    /// are left as they are.
    pub included: Option<&'a [bool]>,
}

impl<T> RoutedLinear<'_, T> {
    /// Returns the experts that are computed, once per entry.
    fn used(&self) -> impl Iterator<Item = usize> {
        let experts = self.routing.routed.iter().map(|routed| routed.expert as usize);
        experts.filter(|expert| self.included.is_none_or(|included| included[*expert]))
    }
}

impl Kernels {
    /// Computes the linear of each entry of the routing. `x` is `[rows, k]`, and `out` is
    /// `[rows, top_k, n]`. Each entry has the bits of [`Kernels::linear`] or
    /// [`Kernels::linear_grouped`] for its row and its expert's weights.
    ///
    /// # Panics
    /// Panics if a routing does not ascend or names an expert that does not exist, if lengths do
    /// not agree, or if sizes exceed [`ExpertLimits`].
    pub fn expert_linear<T: LinearTasks>(
        &self,
        experts: &RoutedLinear<'_, T>,
        x: &[T],
        out: LinearOut<'_, T>,
    ) {
        let RoutedLinear { routing, n, k, .. } = *experts;
        let rows = self.checked_rows(experts);
        assert_eq!(x.len(), rows * k, "x is [rows, k]");
        let epilogue = Epilogue::new(out, rows * routing.top_k * n);
        let pass = self.pass_of_all(experts, x, routing.top_k, epilogue);
        for (first, routed) in self.passes(&routing) {
            let x = pass.x.wrapping_add(first * k);
            let epilogue = epilogue.skip(first * routing.top_k * n);
            self.expert_pass(&ExpertPass { x, epilogue, ..pass }, routed);
        }
    }

    /// Computes the linear of each entry of the routing for an input of its own. `x` is
    /// `[rows, top_k, k]`, and `out` is `[rows, top_k, n]`. Followed by
    /// [`Kernels::combine_experts`], it has the bits of [`Kernels::expert_down`].
    ///
    /// # Panics
    /// Panics under the conditions of [`Kernels::expert_linear`].
    pub fn expert_products<T: LinearTasks>(
        &self,
        experts: &RoutedLinear<'_, T>,
        x: &[T],
        out: &mut [f32],
    ) {
        let RoutedLinear { routing, n, k, .. } = *experts;
        let rows = self.checked_rows(experts);
        assert_eq!(x.len(), rows * routing.top_k * k, "x is [rows, top_k, k]");
        let epilogue = Epilogue::new(LinearOut::StoreF32(out), rows * routing.top_k * n);
        let pass = self.pass_of_all(experts, x, 1, epilogue);
        for (first, routed) in self.passes(&routing) {
            let first = first * routing.top_k;
            let x = pass.x.wrapping_add(first * k);
            self.expert_pass(&ExpertPass { x, epilogue: epilogue.skip(first * n), ..pass }, routed);
        }
    }

    /// Computes `hidden += sum of weight * (linear of x)` over each row's entries. `x` is
    /// `[rows, top_k, k]`, and `hidden` is `[rows, n]`. Products are rounded, then added up in
    /// ascending order of experts from the first one on; the sum is added to `hidden` once. All
    /// arithmetic is in f32.
    ///
    /// # Panics
    /// Panics under the conditions of [`Kernels::expert_linear`], and if not all experts are
    /// included.
    pub fn expert_down<T: LinearTasks>(
        &self,
        experts: &RoutedLinear<'_, T>,
        x: &[T],
        hidden: &mut [f32],
    ) {
        let RoutedLinear { routing, n, k, included, .. } = *experts;
        let rows = self.checked_rows(experts);
        assert!(included.is_none(), "sums are over all experts of a row");
        assert!(n <= self.experts.limits.hidden, "n {n} is beyond the limits of experts");
        assert_eq!(x.len(), rows * routing.top_k * k, "x is [rows, top_k, k]");
        let epilogue = Epilogue::new(LinearOut::AddTo(hidden), rows * n);
        let pass = self.pass_of_all(experts, x, 1, epilogue);
        let residual = hidden.as_mut_ptr();
        for (first, routed) in self.passes(&routing) {
            let x = pass.x.wrapping_add(first * routing.top_k * k);
            let residual = SharedPointer(residual.wrapping_add(first * n));
            self.down_pass(&ExpertPass { x, ..pass }, routed, routing.top_k, residual);
        }
    }

    /// Checks everything that does not depend on x and outputs. Returns the number of rows of the
    /// routing.
    fn checked_rows<T>(&self, experts: &RoutedLinear<'_, T>) -> usize {
        let RoutedLinear { ref routing, n, k, bias, places, .. } = *experts;
        let limits = self.experts.limits;
        assert!(bias.is_none() || places.is_none(), "biases are in one place");
        assert!(k >= 1, "a linear has inputs");
        assert!(k <= limits.inputs, "k {k} is beyond the limits of experts");
        assert!(routing.top_k <= limits.top_k, "top_k is beyond the limits of experts");
        assert!(routing.experts <= limits.experts, "there are more experts than the limit");
        let is_complete = experts.included.is_none_or(|list| list.len() == routing.experts);
        assert!(is_complete, "each expert is included or not");
        let biases = routing.experts * n;
        assert!(bias.is_none_or(|bias| bias.len() == biases), "bias is [experts, n]");
        routing.rows()
    }

    fn pass_of_all<'a, T: LinearTasks>(
        &self,
        experts: &RoutedLinear<'a, T>,
        x: &[T],
        slots_per_row: usize,
        epilogue: Epilogue<T>,
    ) -> ExpertPass<'a, T> {
        let RoutedLinear { ref routing, n, k, weight, bias, places, included } = *experts;
        let weight = match &places {
            None => weight.checked(routing.experts, n, k),
            Some(places) => weight.checked_at(places, experts.used(), n, k),
        };
        ExpertPass {
            experts: routing.experts,
            n,
            k,
            x: x.as_ptr(),
            slots_per_row,
            weight,
            activations: self.activations,
            bias: bias.map(<[f32]>::as_ptr),
            places,
            included,
            epilogue,
        }
    }

    /// Returns the routings of as many rows as the scratch has capacity for, with the first row of
    /// each.
    fn passes<'a>(
        &self,
        routing: &Routing<'a>,
    ) -> impl Iterator<Item = (usize, &'a [RoutedExpert])> {
        let rows = self.experts.limits.rows;
        (0..).step_by(rows).zip(routing.routed.chunks(rows * routing.top_k))
    }

    fn expert_pass<T: LinearTasks>(&self, pass: &ExpertPass<'_, T>, routed: &[RoutedExpert]) {
        let mut plan = self.experts.plan.borrow_mut();
        plan.lay_out(pass, routed, self.variant, self.pool.threads());
        let plan = &*plan;
        self.pack_parts(pass, plan);
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let packed = SharedPointer(self.experts.packed.as_mut_ptr());
        self.run_linear(plan.tasks(), &|task, thread| {
            let part = plan.part_of(task);
            let (cols, row_tiles) = part.cuts.of(task - part.first_task);
            let call = pass.call(part.expert, part.rows, pass.x);
            let packed = SharedPointer(packed.pointer().wrapping_add(part.packed_at));
            let scratch = per_thread.for_thread(thread);
            // SAFETY: the variant was checked when the kernels were built. Rows and columns are
            // within the shapes that were asserted, a part has other outputs than all others, and
            // the scratch belongs to this thread.
            unsafe {
                let area = call.multiply(variant, &part.layout, packed, row_tiles, cols, scratch);
                let output_rows = Some(plan.slots(part).as_ptr());
                let (n, bias, epilogue) = (call.n, call.bias, call.epilogue);
                T::finish(variant, EpilogueTask { area, n, bias, epilogue, output_rows });
            }
        });
    }

    /// Computes the pass with tasks that each process some columns of all experts, so that a task
    /// adds them up in order.
    fn down_pass<T: LinearTasks>(
        &self,
        pass: &ExpertPass<'_, T>,
        routed: &[RoutedExpert],
        top_k: usize,
        residual: SharedPointer<f32>,
    ) {
        let threads = self.pool.threads().min(self.thread_limits.linear);
        let mut plan = self.experts.plan.borrow_mut();
        plan.lay_out(pass, routed, self.variant, threads);
        let plan = &*plan;
        self.pack_parts(pass, plan);
        let (variant, n, per_thread) = (self.variant, pass.n, &self.per_thread);
        let packed = SharedPointer(self.experts.packed.as_mut_ptr());
        let totals = SharedPointer(self.experts.totals.as_mut_ptr());
        let tasks = if threads == 1 { 1 } else { DOWN_TASKS * threads };
        let units = n.div_ceil(COLS_UNIT);
        let tasks = tasks.min(units);
        self.run_linear(tasks, &|task, thread| {
            let cols = |task: usize| n.min(task * units / tasks * COLS_UNIT);
            let scratch = per_thread.for_thread(thread);
            for part in &plan.parts {
                let call = pass.call(part.expert, part.rows, pass.x);
                let packed = SharedPointer(packed.pointer().wrapping_add(part.packed_at));
                let slots = plan.slots(part).as_ptr();
                for cols in steps(cols(task)..cols(task + 1), part.layout.tiles.task_cols) {
                    let row_tiles = 0..part.layout.tiles.count;
                    // SAFETY: as above; the columns of totals and residual are this task's alone.
                    unsafe {
                        let layout = &part.layout;
                        let area = call.multiply(variant, layout, packed, row_tiles, cols, scratch);
                        let (totals, residual) = (totals.pointer(), residual.pointer());
                        let (routed, bias) = (routed.as_ptr(), call.bias);
                        combine(
                            variant,
                            Combine { area, n, bias, slots, routed, top_k, totals, residual },
                        );
                    }
                }
            }
        });
    }

    /// Packs the rows of all parts.
    fn pack_parts<T: LinearTasks>(&self, pass: &ExpertPass<'_, T>, plan: &PassPlan) {
        let (variant, gathered) = (self.variant, &self.experts.gathered);
        let packed = SharedPointer(self.experts.packed.as_mut_ptr());
        let pack = |packing: usize, thread: usize| {
            let part = &plan.parts[plan.packings[packing]];
            let slots = plan.slots(part);
            let packed = SharedPointer(packed.pointer().wrapping_add(part.packed_at));
            // SAFETY: the variant was checked when the kernels were built; the limits give the
            // thread space for gathered rows and every part space for packed ones, and no two parts
            // that are packed share it.
            unsafe {
                let x = if let [slot] = *slots {
                    pass.row(slot)
                } else {
                    let gathered = gathered.for_thread(thread).cast::<T>();
                    pass.gather(slots, gathered);
                    gathered.cast_const()
                };
                let call = pass.call(part.expert, part.rows, x);
                for tile in 0..part.layout.tiles.count {
                    call.pack(variant, &part.layout, packed, tile, 0..part.layout.blocks());
                }
            }
        };
        let rows: usize = plan.packings.iter().map(|&part| plan.parts[part].rows).sum();
        let [spinning, sleeping] = PARALLEL_PACK;
        if rows * pass.k >= if self.pool.spins() { spinning } else { sleeping } {
            self.run_linear(plan.packings.len(), &pack);
        } else {
            (0..plan.packings.len()).for_each(|packing| pack(packing, 0));
        }
    }
}

/// Returns ranges of at most `max_cols` columns.
pub(super) fn steps(cols: Range<usize>, max_cols: usize) -> impl Iterator<Item = Range<usize>> {
    cols.clone().step_by(max_cols).map(move |first| first..cols.end.min(first + max_cols))
}
