//! Kernel for more rows with AMX: the same integers in tiles, sixteen rows by sixteen columns by a
//! group.
//!
//! Integer sums are exact, so they are those of `multiply` bit for bit, and so are the totals,
//! since groups are added in the same order.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use model::quantized_format::Bits;

use super::factors::{Factors, whole};
use super::products::{
    Bytes, Operands, TILE_BYTES, TileOperands, TwoDigits, TwoDigitsFourBits, begin, config, store,
    take_x,
};
use super::shape::{COLS, PANELS};
use super::weights::{
    FewBits, GroupIntegers, Int8Weights, TableWeights, UpperBits, WeightBytes, nibbles, steps,
};
use crate::amx::tiles::{TILE, Tiles};
use crate::linear::prefetch::{Lines, Prefetcher};
use crate::linear::reader::{Records, record_ranges};
use crate::linear::sizes::{BLOCK_UNITS, RESULT_STRIDE};
use crate::linear::task::TaskOperands;
use crate::linear::tiled::TILE_LEN;
use crate::linear::tuning::INTEGER_TILES_PREFETCH_BYTES;
use crate::simd::avx512::Avx512;

/// Maximum number of tiles of x in a task with few rows.
const FEW_TILES: usize = 2;
/// Panels of a strip of weights, which stays expanded to bytes while all rows are multiplied by it:
/// a tile of x is read from the second-level cache once for all of them.
const STRIP_PANELS: usize = 2 * PANELS;
/// Groups of a strip that are expanded at a time with up to `FEW_TILES` tiles of x; `MANY_GROUPS`
/// with more. More groups would not fit in a first-level cache shared by two threads.
const FEW_GROUPS: usize = 1;
const MANY_GROUPS: usize = 2;

/// Layout of a task's part of its thread's scratch.
#[repr(C, align(64))]
struct Scratch {
    /// Weights of some groups as bytes, `[group][panel][step][16 columns][4 inputs]`; with 4 bits
    /// 16 times each weight, followed by the weights themselves.
    weights: [[[[u8; TILE_BYTES]; 2]; STRIP_PANELS]; MANY_GROUPS],
    /// Sums of two places, as stored from the tiles; with 8 bits `[high, low]` of each.
    sums: [[[[i32; TILE]; TILE]; 2]; 2],
}

const _: () = assert!(size_of::<Scratch>() <= 4 * TILE_LEN);

/// Computes the sums of the task's columns and rows and stores them in its results.
///
/// # Safety
/// AMX may be used by this process, or is emulated; the machine has AVX-512. x was packed in tiles;
/// the task's own conditions hold.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn sums(reader: Records, area: &TaskOperands) {
    // SAFETY: the caller's promise.
    unsafe {
        match reader.bits() {
            Bits::Four => sums_of::<TwoDigitsFourBits>(reader, area),
            _ => sums_of::<TwoDigits>(reader, area),
        }
    }
}

/// Computes the sums of the task's columns and rows like [`sums`], with x packed as bytes.
///
/// # Safety
/// The conditions of [`sums`] hold.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn sums_of_bytes(reader: Records, area: &TaskOperands) {
    // SAFETY: the caller's promise.
    unsafe { sums_of::<Bytes>(reader, area) };
}

/// Returns the number of units of packed x for the given number of inputs.
const fn units_of<O: TileOperands>(inputs: usize) -> usize {
    match O::OPERANDS {
        Operands::Bytes => inputs / 4,
        Operands::TwoDigitsFourBits | Operands::TwoDigits => super::shape::units_of(inputs),
    }
}

/// Computes the sums of products of such operands.
///
/// # Safety
/// The conditions of [`sums`] hold for such weights.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn sums_of<O: TileOperands>(reader: Records, area: &TaskOperands) {
    let first_row = area.tiles.start(area.row_tiles.start);
    let rows = area.tiles.start(area.row_tiles.end) - first_row;
    let (first, end) = (area.cols.start / COLS, area.cols.end.div_ceil(COLS));
    let (group, groups) = (reader.group(), reader.groups());
    let per_block = BLOCK_UNITS / units_of::<O>(group);
    let of_block = |block: usize| block * per_block..groups.min((block + 1) * per_block);
    let at_once = if few(area) { FEW_GROUPS } else { MANY_GROUPS };
    let strips = || {
        (first..end).step_by(STRIP_PANELS).map(|panel| Strip {
            reader,
            area,
            panel,
            panels: STRIP_PANELS.min(end - panel),
            totals: area.unfinished().wrapping_add((panel - first) * rows * COLS),
        })
    };
    let mut tiles = Tiles::new();
    // SAFETY: the caller's promise.
    unsafe { tiles.configure(&config(rows, steps(group))) };
    let mut ring = Ring::<O> { before: None, scratch: area.scratch.cast(), operands: PhantomData };
    for (run, is_last) in area.runs(BLOCK_UNITS, groups.div_ceil(per_block)) {
        let run = of_block(run.start).start..of_block(run.end - 1).end;
        for strip in strips() {
            let panel = strip.panel + strip.panels;
            let next = if panel < end {
                (panel, run.clone())
            } else {
                (first, if is_last { 0..0 } else { run.end..groups.min(run.end + run.len()) })
            };
            let next = match next {
                (_, groups) if groups.is_empty() || few(area) => Lines::NONE,
                (panel, groups) => reader.lines_of(panel, STRIP_PANELS.min(end - panel), groups),
            };
            let mut prefetcher = Prefetcher::new(next, run.len() * strip.panels * rows);
            for at in run.clone().step_by(at_once) {
                let groups = at..run.end.min(at + at_once);
                // SAFETY: panels and groups exist, tiles are configured; the rest is the caller's
                // promise.
                unsafe { strip.add(groups, &mut ring, &mut prefetcher) };
            }
        }
    }
    // SAFETY: tiles are configured; the caller's promise.
    unsafe { ring.turn(None, &mut Prefetcher::new(Lines::NONE, 0)) };
    for strip in strips() {
        let cols = strip.panels * COLS;
        for row in 0..rows {
            let to =
                area.results().wrapping_add(row * RESULT_STRIDE + (strip.panel - first) * COLS);
            // SAFETY: totals are complete; results have space for whole panels.
            unsafe { to.copy_from_nonoverlapping(strip.totals.add(row * cols), cols) };
        }
    }
}

/// Some panels of a task, with all of its rows.
#[derive(Clone, Copy)]
struct Strip<'a> {
    reader: Records,
    area: &'a TaskOperands,
    /// First panel. The strip has `panels` panels.
    panel: usize,
    panels: usize,
    /// `[row][panel][16]`.
    totals: *mut f32,
}

impl Strip<'_> {
    /// Multiplies some groups, at most `MANY_GROUPS`; `ring` adds them to the totals, which the
    /// first group sets.
    ///
    /// # Safety
    /// The conditions of [`sums_of`] hold; the groups exist, and tiles are configured for the task.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add<O: TileOperands>(
        self,
        groups: Range<usize>,
        ring: &mut Ring<O>,
        prefetcher: &mut Prefetcher,
    ) {
        let Strip { reader, area, panel, panels, totals } = self;
        let prefetches = few(area);
        let steps = steps(reader.group());
        let first_row = area.tiles.start(area.row_tiles.start);
        // SAFETY: the scratch is the thread's own and large enough; all operands exist.
        unsafe {
            let weights = (&raw mut (*ring.scratch).weights).cast::<u8>();
            let weights_of = |group: usize, p: usize| {
                weights.wrapping_add(((group - groups.start) * STRIP_PANELS + p) * 2 * TILE_BYTES)
            };
            for group in groups.clone() {
                for p in 0..panels {
                    let to = weights_of(group, p);
                    expand::<O>(reader, panel + p, group, to, prefetches);
                }
            }
            for tile in area.row_tiles.clone() {
                let (start, rows) = (area.tiles.start(tile), area.tiles.height(tile));
                for group in groups.clone() {
                    let units = units_of::<O>(reader.group());
                    let x = area.packed.pointer().wrapping_add(start * reader.groups() * units);
                    let x = x.wrapping_add(group * units * rows);
                    take_x::<O>([x.cast(), x.wrapping_add(steps * rows).cast()], 4 * steps);
                    let factors = Factors::of(area, tile, group);
                    for p in (0..panels).step_by(O::PLACES) {
                        let products = Products {
                            count: O::PLACES.min(panels - p),
                            weights: weights_of(group, p),
                            reader,
                            panel: panel + p,
                            group,
                            factors,
                            rows,
                            totals: totals.add(((start - first_row) * panels + p) * COLS),
                            stride: panels * COLS,
                        };
                        ring.turn(Some(products), prefetcher);
                    }
                }
            }
        }
    }
}

/// Returns true if the rows are so few that memory bandwidth bounds them. Each vector then
/// prefetches a later one of its panel.
fn few(area: &TaskOperands) -> bool {
    area.row_tiles.len() <= FEW_TILES
}

/// Expands the weights of a panel and group to unsigned bytes, one line per step, in the layout of
/// [`Scratch::weights`]. Prefetches the weights `INTEGER_TILES_PREFETCH_BYTES` further if
/// `prefetches`.
///
/// # Safety
/// The group exists; `to` is two tiles.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
unsafe fn expand<O: TileOperands>(
    reader: Records,
    panel: usize,
    group: usize,
    to: *mut u8,
    prefetches: bool,
) {
    let from = reader.integers_at(panel, group);
    if prefetches {
        let lines = reader.lines_of(panel, 1, group..group + 1);
        for line in 0..lines.lines {
            let at = lines.at.wrapping_add(INTEGER_TILES_PREFETCH_BYTES + 64 * line);
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
    let pairs = steps(reader.group()) / 2;
    let integers = GroupIntegers::new(reader, from, group);
    // SAFETY: a group has its vectors, a tile a line for each step.
    unsafe {
        match reader.bits() {
            Bits::Four => {
                for index in 0..pairs {
                    let vector = _mm512_loadu_si512(from.add(64 * index).cast());
                    for half in 0..2 {
                        let (times_16, weights) = nibbles(vector, half == 1);
                        let to = to.add(64 * (2 * index + half));
                        if const { matches!(O::OPERANDS, Operands::Bytes) } {
                            _mm512_storeu_si512(to.cast(), weights);
                        } else {
                            _mm512_storeu_si512(to.cast(), times_16);
                            _mm512_storeu_si512(to.add(TILE_BYTES).cast(), weights);
                        }
                    }
                }
            }
            Bits::Eight => expand_bytes(Int8Weights, integers, pairs, to),
            Bits::Five | Bits::FiveSigned => expand_bytes(UpperBits::<1>, integers, pairs, to),
            Bits::SixSigned => expand_bytes(UpperBits::<2>, integers, pairs, to),
            Bits::Table(table) => match table.index_bits() {
                2 => expand_bytes(FewBits::<false>::new(table), integers, pairs, to),
                3 => expand_bytes(FewBits::<true>::new(table), integers, pairs, to),
                _ => expand_bytes(TableWeights::new(table), integers, pairs, to),
            },
        }
    }
}

/// Expands some pairs of steps of a group to unsigned bytes.
///
/// # Safety
/// The group exists; `to` has a line for each step.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
unsafe fn expand_bytes<W: WeightBytes>(
    weights: W,
    group: GroupIntegers,
    pairs: usize,
    to: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = weights.begin(group);
        for pair in 0..pairs {
            for (step, bytes) in weights.pair(&mut vectors, pair).into_iter().enumerate() {
                _mm512_storeu_si512(to.add(64 * (2 * pair + step)).cast(), bytes);
            }
        }
    }
}

/// Products of a tile of x and a group of some panels, one in each place of the ring, and the
/// totals to which they are added.
struct Products {
    count: usize,
    weights: *const u8,
    reader: Records,
    /// First panel.
    panel: usize,
    group: usize,
    factors: Factors,
    rows: usize,
    /// Totals of the first row and panel, with rows `stride` apart.
    totals: *mut f32,
    stride: usize,
}

/// Products in flight, one in each place: while tiles are multiplied, the previous products are
/// added to the totals.
struct Ring<O> {
    before: Option<Products>,
    scratch: *mut Scratch,
    operands: PhantomData<O>,
}

impl<O: TileOperands> Ring<O> {
    /// Starts the products of `next` and adds the previous ones to their totals, place by place.
    ///
    /// # Safety
    /// AMX may be used by this process, or is emulated; tiles were configured for this task, and x
    /// of `next` was loaded. All pointers cover the panels and rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn turn(&mut self, next: Option<Products>, prefetcher: &mut Prefetcher) {
        // SAFETY: the caller's promise.
        unsafe {
            self.place::<0>(next.as_ref(), prefetcher);
            self.place::<1>(next.as_ref(), prefetcher);
            if const { O::ONE_SUM } {
                self.place::<2>(next.as_ref(), prefetcher);
                self.place::<3>(next.as_ref(), prefetcher);
            }
        }
        self.before = next;
    }

    /// Processes a place of the ring.
    ///
    /// # Safety
    /// The conditions of [`Ring::turn`] hold.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn place<const PLACE: usize>(
        &self,
        next: Option<&Products>,
        prefetcher: &mut Prefetcher,
    ) {
        let before = self.before.as_ref().filter(|before| PLACE < before.count);
        let next = next.filter(|next| PLACE < next.count);
        // SAFETY: the caller's promise; the scratch is the thread's own.
        unsafe {
            // The two buffers alternate, so that no store waits until the sums before it are read.
            let sums = (&raw mut (*self.scratch).sums[PLACE % 2]).cast::<i32>();
            if before.is_some() {
                store::<O, PLACE>(sums);
            }
            if let Some(next) = next {
                begin::<O, PLACE>(next.weights.wrapping_add(PLACE * 2 * TILE_BYTES));
            }
            if let Some(before) = before {
                before.add::<O>(PLACE, sums, prefetcher);
            }
        }
    }
}

impl Products {
    /// Adds `sums` to the totals of panel `p`.
    ///
    /// # Safety
    /// All pointers cover the panels and the rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add<O: TileOperands>(&self, p: usize, sums: *const i32, prefetcher: &mut Prefetcher) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        let Products { reader, group, .. } = *self;
        let record = reader.record_at(self.panel + p, group);
        // SAFETY: the record exists.
        let (scale, min) =
            unsafe { record_ranges(s, reader.format(), record, reader.place(group), 0) };
        for row in 0..self.rows {
            prefetcher.step(s);
            let sum = sums.wrapping_add(row * TILE);
            // SAFETY: the caller's promise.
            unsafe {
                let part = _mm512_loadu_si512(sum.cast());
                let part = if const { O::ONE_SUM } {
                    part
                } else {
                    whole(part, _mm512_loadu_si512(sum.add(TILE * TILE).cast()))
                };
                let total = self.totals.add(row * self.stride + p * COLS);
                let before = if group == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(total) };
                let after = match const { O::OPERANDS } {
                    Operands::TwoDigitsFourBits => {
                        self.factors.add::<true>(row, before, part, scale, min)
                    }
                    _ => self.factors.add::<false>(row, before, part, scale, min),
                };
                _mm512_storeu_ps(total, after);
            }
        }
    }
}
