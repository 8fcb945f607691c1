//! The products of a task of few rows: weights are decoded in registers, where all rows use them.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::marker::PhantomData;
use std::ops::Range;

use model::quantized_format::Bits;

use super::biased::RowFactors;
use super::decode::{Decode, Entries, FewEntries, GroupAt, Nibbles, Split, Whole};
use super::form::{ByteForm, Dots, MAX_STEPS, Pairs, ProductSums, Products, Signed, Single, Words};
use super::shape::{BLOCK_INPUTS, PANELS, STEP};
use super::target::Target;
use crate::linear::factors::FACTORS;
use crate::linear::reader::Records;
use crate::linear::sizes::RESULT_STRIDE;
use crate::linear::task::TaskOperands;
use crate::simd::{OutOfLine, Simd};

/// A task of at most [`DIRECT_ROWS`](super::shape::DIRECT_ROWS) rows, in tiles of at most
/// [`DIRECT_TILE_ROWS`](super::shape::DIRECT_TILE_ROWS).
#[derive(Clone, Copy)]
pub(super) struct FewRows<'a> {
    pub(super) records: Records,
    pub(super) form: ByteForm,
    pub(super) area: &'a TaskOperands,
}

impl FewRows<'_> {
    /// Computes the sums and stores them in the task's results.
    pub(super) fn run<T: Target>(self, s: T::S) {
        let FewRows { records, form, area } = self;
        let (tiles, group) = (area.tiles, records.group());
        let lanes = <T::S as Simd>::LANES;
        let (first, end) = (area.cols.start / lanes, area.cols.end.div_ceil(lanes));
        let first_row = tiles.start(area.row_tiles.start);
        let units = records.groups() * group / STEP;
        // The weights of a block stay in the first-level cache for the next tile.
        let block_groups = if tiles.count == 1 { records.groups() } else { BLOCK_INPUTS / group };
        for panel in (first..end).step_by(PANELS) {
            for (block, first_group) in (0..records.groups()).step_by(block_groups).enumerate() {
                for tile in area.row_tiles.clone() {
                    let row = tiles.start(tile);
                    let x =
                        area.packed.pointer().wrapping_add(tiles.packed_before(units, block, row));
                    let factors = FACTORS * (first_group * tiles.rows + row);
                    let call = Call {
                        records,
                        form,
                        panel,
                        groups: first_group..records.groups().min(first_group + block_groups),
                        x: x.cast_const().cast(),
                        factors: area.sums.pointer().wrapping_add(factors),
                        factors_stride: FACTORS * tiles.rows,
                        out: area
                            .results()
                            .wrapping_add((row - first_row) * RESULT_STRIDE)
                            .wrapping_add((panel - first) * lanes),
                    };
                    match tiles.height(tile) {
                        1 => call.run::<T, 1>(s),
                        2 => call.run::<T, 2>(s),
                        3 => call.run::<T, 3>(s),
                        4 => call.run::<T, 4>(s),
                        rows => unreachable!("no tile has {rows} rows"),
                    }
                }
            }
        }
    }
}

/// A tile of rows times some groups of two panels, of which the second may not exist.
#[derive(Clone)]
struct Call {
    records: Records,
    form: ByteForm,
    panel: usize,
    groups: Range<usize>,
    /// Dwords of packed rows, `[step][row]`.
    x: *const u32,
    /// Factors of the first group. Those of the next group are `factors_stride` floats further.
    factors: *const f32,
    factors_stride: usize,
    /// Results `[row][RESULT_STRIDE]`, which are set by the first group.
    out: *mut f32,
}

impl Call {
    /// Adds the products of `R` rows to the results.
    fn run<T: Target, const R: usize>(self, s: T::S) {
        let (bits, steps) = (self.records.bits(), self.records.group() / STEP);
        let products = self.form.products;
        macro_rules! run {
            ($products:ty, $steps:literal, $decoder:ty) => {
                s.out_of_line(Direct::<$products, $decoder, $steps, R>(self, PhantomData))
            };
        }
        let indices = match bits {
            Bits::Table(table) => table.index_bits(),
            _ => 0,
        };
        if const { T::HAS_DOTS } {
            match (bits, indices, steps) {
                (Bits::Four, _, 8) => run!(Dots, 8, Nibbles),
                (Bits::Five | Bits::FiveSigned, _, 8) => run!(Dots, 8, Split<1>),
                (Bits::SixSigned, _, 4) => run!(Dots, 4, Split<2>),
                (Bits::Eight, _, 8) => run!(Dots, 8, Whole),
                (Bits::Eight, _, 4) => run!(Dots, 4, Whole),
                (Bits::Table(_), 2, 8) => run!(Dots, 8, FewEntries<false>),
                (Bits::Table(_), 2, 4) => run!(Dots, 4, FewEntries<false>),
                (Bits::Table(_), 3, 8) => run!(Dots, 8, FewEntries<true>),
                (Bits::Table(_), 3, 4) => run!(Dots, 4, FewEntries<true>),
                (Bits::Table(_), 4, 8) => run!(Dots, 8, Entries),
                (Bits::Table(_), 4, 4) => run!(Dots, 4, Entries),
                _ => unreachable!("no weights of {bits:?} in groups of {steps} steps"),
            }
        } else {
            match (products, bits, indices, steps) {
                (Products::Words, Bits::Four, _, 8) => run!(Words, 8, Nibbles),
                (Products::Pairs, Bits::Five | Bits::FiveSigned, _, 8) => run!(Pairs, 8, Split<1>),
                (Products::Pairs, Bits::SixSigned, _, 4) => run!(Pairs, 4, Split<2>),
                (Products::Signed, Bits::Eight, _, 8) => run!(Signed, 8, Whole),
                (Products::Signed, Bits::Eight, _, 4) => run!(Signed, 4, Whole),
                (Products::Words, Bits::Table(_), 2, 8) => run!(Words, 8, FewEntries<false>),
                (Products::Words, Bits::Table(_), 2, 4) => run!(Words, 4, FewEntries<false>),
                (Products::Words, Bits::Table(_), 3, 8) => run!(Words, 8, FewEntries<true>),
                (Products::Words, Bits::Table(_), 3, 4) => run!(Words, 4, FewEntries<true>),
                (Products::Pairs, Bits::Table(_), 3, 8) => run!(Pairs, 8, FewEntries<true>),
                (Products::Pairs, Bits::Table(_), 3, 4) => run!(Pairs, 4, FewEntries<true>),
                (Products::Single, Bits::Table(_), 3, 8) => run!(Single, 8, FewEntries<true>),
                (Products::Single, Bits::Table(_), 3, 4) => run!(Single, 4, FewEntries<true>),
                (Products::Words, Bits::Table(_), 4, 4) => run!(Words, 4, Entries),
                (Products::Pairs, Bits::Table(_), 4, 8) => run!(Pairs, 8, Entries),
                (Products::Single, Bits::Table(_), 4, 8) => run!(Single, 8, Entries),
                (Products::Signed, Bits::Table(_), 4, 8) => run!(Signed, 8, Entries),
                _ => unreachable!("no {products:?} of {bits:?} in groups of {steps} steps"),
            }
        }
    }
}

/// Products `P` of weights that `D` decodes, in groups of `STEPS` steps, with `R` rows.
struct Direct<P, D, const STEPS: usize, const R: usize>(Call, PhantomData<(P, D)>);

impl<S, P, D, const STEPS: usize, const R: usize> OutOfLine<S> for Direct<P, D, STEPS, R>
where
    S: Simd,
    P: ProductSums<S>,
    D: Decode<S>,
{
    #[inline(always)]
    fn run(self, s: S) {
        let Call { records, form, panel, groups, mut x, mut factors, factors_stride, out } = self.0;
        let decoder = D::new(s, records.bits(), form);
        let has_minimums = records.format().scales.has_minimums();
        // A second panel that does not exist has the sums of the first, which are not used.
        let second = if records.has_panel::<S>(panel + 1) { panel + 1 } else { panel };
        let mut totals = [[s.zero(); PANELS]; R];
        if groups.start > 0 {
            for row in 0..R {
                for p in 0..PANELS {
                    // SAFETY: the results of earlier groups are there.
                    totals[row][p] = unsafe { s.load(out.add(row * RESULT_STRIDE + p * S::LANES)) };
                }
            }
        }
        for group in groups {
            let at = [GroupAt { records, panel, group }, GroupAt { records, panel: second, group }];
            // SAFETY: panels and group exist; packed rows and factors are the pass's.
            unsafe {
                let sums = group_sums::<S, P, D, STEPS, R>(s, decoder, at, x, factors);
                let ranges = [records.ranges(s, panel, group), records.ranges(s, second, group)];
                for row in 0..R {
                    let of_row = RowFactors::load(s, factors, row, R);
                    for p in 0..PANELS {
                        let (scale, min) = ranges[p];
                        let part = of_row.part(s, sums[row][p]);
                        totals[row][p] = s.fma(scale, part, totals[row][p]);
                        if has_minimums {
                            totals[row][p] = s.fma(min, of_row.sum, totals[row][p]);
                        }
                    }
                }
            }
            x = x.wrapping_add(STEPS * R);
            factors = factors.wrapping_add(factors_stride);
        }
        for row in 0..R {
            for p in 0..PANELS {
                // SAFETY: the task's results have space for whole pairs of panels.
                unsafe { s.store(out.add(row * RESULT_STRIDE + p * S::LANES), totals[row][p]) };
            }
        }
    }
}

/// Returns the sums of the products of a group of two panels and dwords of x, `[step][row]`. They
/// are more by the number from which the rows' `factors` let them start.
///
/// # Safety
/// The panels, the group, its dwords and factors exist, and the machine has the instructions.
#[inline(always)]
unsafe fn group_sums<S, P, D, const STEPS: usize, const R: usize>(
    s: S,
    decoder: D,
    at: [GroupAt; PANELS],
    x: *const u32,
    factors: *const f32,
) -> [[S::D; PANELS]; R]
where
    S: Simd,
    P: ProductSums<S>,
    D: Decode<S>,
{
    let mut sums = [[s.zero_dwords(); PANELS]; R];
    for row in 0..R {
        // SAFETY: the caller's promise.
        let start = unsafe { RowFactors::start(s, factors, row, R) };
        sums[row] = [P::begin(s, start); PANELS];
    }
    // SAFETY: the caller's promise.
    unsafe {
        let shared = [decoder.shared(s, at[0]), decoder.shared(s, at[1])];
        for pair in 0..STEPS / 2 {
            let weights =
                [decoder.pair(s, at[0], shared[0], pair), decoder.pair(s, at[1], shared[1], pair)];
            for first in (0..2).step_by(P::STEPS) {
                for row in 0..R {
                    let mut dwords = [s.zero_dwords(); MAX_STEPS];
                    for step in 0..P::STEPS {
                        dwords[step] = s.splat_dword(*x.add((2 * pair + first + step) * R + row));
                    }
                    for p in 0..PANELS {
                        let mut vectors = [s.zero_dwords(); MAX_STEPS];
                        vectors[..P::STEPS].copy_from_slice(&weights[p][first..first + P::STEPS]);
                        sums[row][p] = P::add(s, sums[row][p], vectors, dwords);
                    }
                }
            }
        }
    }
    for row in 0..R {
        // SAFETY: the caller's promise.
        let start = unsafe { RowFactors::start(s, factors, row, R) };
        for p in 0..PANELS {
            sums[row][p] = P::finish(s, sums[row][p], start);
        }
    }
    sums
}
