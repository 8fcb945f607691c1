//! The products of a task: blocks of weights are expanded, and multiplied by all tiles of rows.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::marker::PhantomData;

use super::biased::RowFactors;
use super::direct::FewRows;
use super::expand::{Expand, Expanded};
use super::form::{
    ByteForm, Dots, Pairs, ProductSums, Products, Signed, Single, Words, group_sums,
};
use super::shape::{BLOCK, BLOCK_INPUTS, DIRECT_ROWS, PANELS, STEP};
use super::target::Target;
use crate::linear::factors::FACTORS;
use crate::linear::reader::Records;
use crate::linear::sizes::RESULT_STRIDE;
use crate::linear::task::TaskOperands;
use crate::simd::{OutOfLine, Simd};

/// A task: its columns and rows are those of `area`, which has packed x.
pub(super) struct Multiply<'a, T> {
    pub(super) records: Records,
    pub(super) area: &'a TaskOperands,
    pub(super) target: PhantomData<T>,
}

impl<T: Target> Multiply<'_, T> {
    /// Computes the sums and stores them in the task's results.
    pub(super) fn run(&self, s: T::S) {
        let Multiply { records, area, .. } = *self;
        let format = records.format();
        let form = ByteForm::of(format.bits, format.group, T::HAS_DOTS);
        if area.tiles.rows <= DIRECT_ROWS {
            return FewRows { records, form, area }.run::<T>(s);
        }
        let lanes = <T::S as Simd>::LANES;
        let (first, end) = (area.cols.start / lanes, area.cols.end.div_ceil(lanes));
        let inputs = records.groups() * format.group;
        for (run, _) in area.runs(BLOCK, inputs.div_ceil(BLOCK_INPUTS)) {
            for panel in (first..end).step_by(PANELS) {
                for block in run.clone() {
                    let input = block * BLOCK_INPUTS;
                    let inputs = BLOCK_INPUTS.min(inputs - input);
                    let to = Expanded(area.scratch);
                    s.out_of_line(Expand { records, form, panel, input, inputs, to });
                    let out = area.results().wrapping_add((panel - first) * lanes);
                    let block = Block { records, area, block, inputs, weights: to, out };
                    match form.products {
                        Products::Dots => s.out_of_line(Tiles::<T, Dots>::new(block)),
                        Products::Words => s.out_of_line(Tiles::<T, Words>::new(block)),
                        Products::Pairs => s.out_of_line(Tiles::<T, Pairs>::new(block)),
                        Products::Single => s.out_of_line(Tiles::<T, Single>::new(block)),
                        Products::Signed => s.out_of_line(Tiles::<T, Signed>::new(block)),
                    }
                }
            }
        }
    }
}

/// An expanded block of two panels, and the rows of a task.
#[derive(Clone, Copy)]
struct Block<'a> {
    records: Records,
    area: &'a TaskOperands,
    block: usize,
    inputs: usize,
    weights: Expanded,
    /// Results of the task's first row and the first panel.
    out: *mut f32,
}

/// The products of a block with all tiles of the task.
struct Tiles<'a, T, P> {
    block: Block<'a>,
    products: PhantomData<(T, P)>,
}

impl<'a, T, P> Tiles<'a, T, P> {
    fn new(block: Block<'a>) -> Self {
        Tiles { block, products: PhantomData }
    }
}

impl<T: Target, P: ProductSums<T::S>> OutOfLine<T::S> for Tiles<'_, T, P> {
    #[inline(always)]
    fn run(self, s: T::S) {
        let Block { records, area, block, inputs, weights, out } = self.block;
        let tiles = area.tiles;
        let format = records.format();
        let group = format.group;
        let units = records.groups() * format.group / STEP;
        let has_minimums = format.scales.has_minimums();
        let first_row = tiles.start(area.row_tiles.start);
        for tile in area.row_tiles.clone() {
            let row = tiles.start(tile);
            let x = area.packed.pointer().wrapping_add(tiles.packed_before(units, block, row));
            let factors = FACTORS * (block * BLOCK_INPUTS / group * tiles.rows + row);
            let call = TileCall {
                weights,
                x: x.cast_const().cast(),
                factors: area.sums.pointer().wrapping_add(factors),
                factors_stride: FACTORS * tiles.rows,
                groups: inputs / group,
                steps: group / STEP,
                is_first: block == 0,
                has_minimums,
                out: out.wrapping_add((row - first_row) * RESULT_STRIDE),
            };
            macro_rules! rows {
                ($($rows:literal)*) => {
                    match tiles.height(tile) {
                        $(
                            $rows if const { $rows <= T::TILE_ROWS[0] } => {
                                // SAFETY: the block is expanded; packed rows, factors and results
                                // are the task's.
                                unsafe { call.run::<T::S, P, $rows>(s) }
                            }
                        )*
                        rows => unreachable!("no tile has {rows} rows"),
                    }
                };
            }
            rows!(1 2 3 4 5 6);
        }
    }
}

/// A tile of rows times an expanded block.
struct TileCall {
    weights: Expanded,
    /// Dwords of the block's packed rows.
    x: *const u32,
    /// Factors of the first group. Those of the next group are `factors_stride` floats further.
    factors: *const f32,
    factors_stride: usize,
    groups: usize,
    /// Steps of a group.
    steps: usize,
    /// True if the results are set and not added to.
    is_first: bool,
    has_minimums: bool,
    /// Results `[row][RESULT_STRIDE]`.
    out: *mut f32,
}

impl TileCall {
    /// Adds the products to the results, group by group.
    ///
    /// # Safety
    /// All pointers cover `R` rows and two panels.
    #[inline(always)]
    unsafe fn run<S: Simd, P: ProductSums<S>, const R: usize>(self, s: S) {
        let out = |row: usize, panel: usize| {
            self.out.wrapping_add(row * RESULT_STRIDE + panel * S::LANES)
        };
        let mut totals = [[s.zero(); PANELS]; R];
        for row in 0..R {
            for panel in 0..PANELS {
                if !self.is_first {
                    // SAFETY: the caller's promise.
                    totals[row][panel] = unsafe { s.load(out(row, panel)) };
                }
            }
        }
        for group in 0..self.groups {
            let first_step = group * self.steps;
            let factors = self.factors.wrapping_add(group * self.factors_stride);
            let ranges = self.weights.ranges::<S>(group).cast_const();
            // SAFETY: the caller's promise.
            unsafe {
                let weights = self.weights.step::<S>(first_step).cast_const();
                let x = self.x.add(first_step * R);
                let sums = group_sums::<S, P, R>(s, weights, x, factors, self.steps);
                for row in 0..R {
                    let of_row = RowFactors::load(s, factors, row, R);
                    for panel in 0..PANELS {
                        let scale = s.load(ranges.add(panel * S::LANES));
                        let part = of_row.part(s, sums[row][panel]);
                        totals[row][panel] = s.fma(scale, part, totals[row][panel]);
                    }
                }
                if self.has_minimums {
                    for row in 0..R {
                        let of_row = RowFactors::load(s, factors, row, R);
                        for panel in 0..PANELS {
                            let min = s.load(ranges.add((PANELS + panel) * S::LANES));
                            totals[row][panel] = s.fma(min, of_row.sum, totals[row][panel]);
                        }
                    }
                }
            }
        }
        for row in 0..R {
            for panel in 0..PANELS {
                // SAFETY: the caller's promise.
                unsafe { s.store(out(row, panel), totals[row][panel]) };
            }
        }
    }
}
