//! Division of a pass over the experts into parts: linears of some rows of one expert, each with
//! the path, the packed rows and the tasks of an ordinary linear of that number of rows.

use model::quantized_format::ActivationFormat;

use super::groups::Groups;
use super::places::ExpertPlaces;
use crate::linear::call::{Call, Layout, Weight};
use crate::linear::compiled::LinearTasks;
use crate::linear::cuts::Cuts;
use crate::linear::epilogue::Epilogue;
use crate::linear::sizes::PACK_ROWS;
use crate::router::RoutedExpert;
use crate::simd::MAX_LANES;
use crate::variant::Variant;

/// Marks a row that no part has packed yet.
const NOT_PACKED: usize = usize::MAX;

/// Operands of an operation for the rows of a pass.
#[derive(Debug)]
pub(super) struct ExpertPass<'a, T> {
    pub experts: usize,
    pub n: usize,
    pub k: usize,
    /// Rows of `k` inputs.
    pub x: *const T,
    /// Routing entries per row of x: all entries of the row, or one.
    pub slots_per_row: usize,
    /// Weights of all experts.
    pub weight: Weight<T>,
    pub activations: ActivationFormat,
    /// Biases of all experts.
    pub bias: Option<*const f32>,
    /// Places of matrices and biases in the weights; `None` if they are consecutive.
    pub places: Option<ExpertPlaces<'a>>,
    /// Flags of the experts that are computed; `None` for all.
    pub included: Option<&'a [bool]>,
    pub epilogue: Epilogue<T>,
}

// SAFETY: the pointers come from slices borrowed for the whole pass; x, weight and bias are only
// read, and tasks write disjoint parts of the outputs.
unsafe impl<T: Sync> Sync for ExpertPass<'_, T> {}

impl<T: LinearTasks> ExpertPass<'_, T> {
    /// Returns the linear of an expert for `rows` rows stored at `x`.
    pub(super) fn call(&self, expert: usize, rows: usize, x: *const T) -> Call<T> {
        let ExpertPass { n, k, weight, activations, bias, epilogue, .. } = *self;
        let (weight, bias) = match self.places {
            None => {
                let bias = bias.map(|bias| bias.wrapping_add(expert * n));
                (weight.matrix(expert, n, k), bias)
            }
            Some(ExpertPlaces { matrices, biases }) => {
                let bias = biases.map(|biases| weight.first_byte().wrapping_add(biases[expert]));
                (weight.at_byte(matrices[expert]), bias.map(<*const u8>::cast))
            }
        };
        Call { rows, n, stride: n, k, x, weight, activations, bias, epilogue }
    }

    /// Copies the rows of x at `slots` to consecutive memory.
    ///
    /// # Safety
    /// x has these rows; `to` has space for them, and no other thread accesses it.
    pub(super) unsafe fn gather(&self, slots: &[u32], to: *mut T) {
        for (i, &slot) in slots.iter().enumerate() {
            let row = self.row(slot);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(row, to.add(i * self.k), self.k) };
        }
    }

    /// Returns the row of x of a routing entry.
    pub(super) fn row(&self, slot: u32) -> *const T {
        self.x.wrapping_add(slot as usize / self.slots_per_row * self.k)
    }
}

/// Some rows of an expert.
#[derive(Debug)]
pub(super) struct ExpertPart {
    pub expert: usize,
    /// Index of the part's first entry among the sorted ones.
    pub first: usize,
    pub rows: usize,
    pub layout: Layout,
    /// Floats of packed rows before those of the part.
    pub packed_at: usize,
    pub cuts: Cuts,
    pub first_task: usize,
}

/// All parts of a pass, in ascending order of experts.
#[derive(Debug)]
pub(super) struct PassPlan {
    pub groups: Groups,
    pub parts: Vec<ExpertPart>,
    /// Parts whose rows have to be packed. The other parts use the packed rows of these.
    pub packings: Vec<usize>,
    /// Offset at which each row of x is packed alone.
    pub single_row_offsets: Vec<usize>,
}

impl PassPlan {
    /// Allocates capacity for the given numbers of experts, entries, parts and rows.
    pub(super) fn new(experts: usize, slots: usize, parts: usize, rows: usize) -> PassPlan {
        PassPlan {
            groups: Groups::new(experts, slots),
            parts: Vec::with_capacity(parts),
            packings: Vec::with_capacity(parts),
            single_row_offsets: Vec::with_capacity(rows),
        }
    }

    /// Divides a pass into parts. Experts that are not included or have no rows have none.
    pub(super) fn lay_out<T: LinearTasks>(
        &mut self,
        pass: &ExpertPass<'_, T>,
        routed: &[RoutedExpert],
        variant: Variant,
        threads: usize,
    ) {
        let PassPlan { groups, parts, packings, single_row_offsets } = self;
        groups.sort(pass.experts, routed);
        parts.clear();
        packings.clear();
        single_row_offsets.clear();
        if pass.slots_per_row > 1 {
            single_row_offsets.resize(routed.len() / pass.slots_per_row, NOT_PACKED);
        }
        let mut packed_end = 0;
        let is_included = |expert: &usize| pass.included.is_none_or(|included| included[*expert]);
        for expert in (0..pass.experts).filter(is_included) {
            let (start, count) = groups.of(expert);
            for first in (start..start + count).step_by(PACK_ROWS) {
                let rows = PACK_ROWS.min(start + count - first);
                let layout = pass.call(expert, rows, pass.x).layout(variant);
                let row = groups.slots()[first] as usize / pass.slots_per_row;
                // A row packed alone has the same layout for all its experts.
                let shared = if rows == 1 { single_row_offsets.get_mut(row) } else { None };
                let packed_at = shared.as_deref().copied().unwrap_or(NOT_PACKED);
                let is_packed = packed_at != NOT_PACKED;
                let packed_at = if is_packed { packed_at } else { packed_end };
                if !is_packed {
                    packings.push(parts.len());
                    packed_end += padded_len(rows * layout.row_len());
                }
                if let Some(shared) = shared {
                    *shared = packed_at;
                }
                let cuts = Cuts::new(pass.n, layout.tiles, 1);
                parts.push(ExpertPart {
                    expert,
                    first,
                    rows,
                    layout,
                    packed_at,
                    cuts,
                    first_task: 0,
                });
            }
        }
        let threads = threads.div_ceil(parts.len().max(1));
        let mut first_task = 0;
        for part in parts {
            part.cuts = Cuts::new(pass.n, part.layout.tiles, threads);
            part.first_task = first_task;
            first_task += part.cuts.tasks();
        }
    }

    /// Returns the number of tasks of all parts.
    pub(super) fn tasks(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first_task + part.cuts.tasks())
    }

    /// Returns the part to which a task belongs.
    pub(super) fn part_of(&self, task: usize) -> &ExpertPart {
        &self.parts[self.parts.partition_point(|part| part.first_task <= task) - 1]
    }

    /// Returns the routing entries of a part's rows.
    pub(super) fn slots(&self, part: &ExpertPart) -> &[u32] {
        &self.groups.slots()[part.first..part.first + part.rows]
    }
}

/// Returns the number of floats that a part's packed rows take: whole lines, and one vector more,
/// since the last row may be read as a vector.
pub(in crate::linear) fn padded_len(floats: usize) -> usize {
    (floats + MAX_LANES).next_multiple_of(MAX_LANES)
}
