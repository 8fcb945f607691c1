//! Kernel for some rows by some panels, over some groups.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use model::quantized_format::{Bits, Grouped};

use super::factors::{Factors, whole};
use super::shape::{COLS, PANELS, tile_rows};
use super::weights::{
    FewBits, GroupIntegers, Int8Weights, TableWeights, UpperBits, WeightBytes, nibbles, steps,
    vectors,
};
use crate::linear::factors::FACTORS;
use crate::linear::prefetch::Prefetcher;
use crate::linear::reader::{Records, record_ranges};
use crate::linear::sizes::RESULT_STRIDE;
use crate::linear::task::TaskOperands;
use crate::linear::tuning::INTEGERS_PREFETCH_BYTES;
use crate::simd::avx512::Avx512;
use crate::simd::integers::avx512::vpdpbusd;

/// Maximum number of rows for which each of the two digits of x has a sum of its own.
const SPLIT_ROWS: usize = 6;

/// A packed tile of rows; see `pack`.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedRows {
    count: usize,
    /// Number of rows of the tile, which are stored side by side.
    stride: usize,
    /// Dwords of the first group of a block.
    x: *const u32,
    /// Factors of that group. Those of the next group are `factors_stride` floats further.
    factors: Factors,
    factors_stride: usize,
}

impl PackedRows {
    /// Returns the rows of a tile in a block whose first group is `group`. All blocks together have
    /// `units` units.
    pub(super) fn of(
        area: &TaskOperands,
        tile: usize,
        units: usize,
        block: usize,
        group: usize,
    ) -> PackedRows {
        let tiles = area.tiles;
        let before = tiles.packed_before(units, block, tiles.start(tile));
        PackedRows {
            count: tiles.height(tile),
            stride: tiles.height(tile),
            x: area.packed.pointer().wrapping_add(before).cast_const().cast(),
            factors: Factors::of(area, tile, group),
            factors_stride: FACTORS * tiles.rows,
        }
    }
}

/// Rows times one or two panels, over a range of groups.
#[derive(Debug, Clone)]
pub(super) struct TileCall {
    pub(super) records: Records,
    /// First panel.
    pub(super) panel: usize,
    pub(super) groups: Range<usize>,
    /// Rows, starting at the first of the groups.
    pub(super) rows: PackedRows,
    /// Results `[row][RESULT_STRIDE]`; the first group sets them.
    pub(super) out: *mut f32,
}

impl TileCall {
    /// Adds the products to the results. Without `prefetcher` the panels' own next lines are
    /// prefetched.
    ///
    /// # Safety
    /// The machine has AVX-512 with VNNI. The panels, rows and groups exist, packed for these
    /// weights, and the results have sufficient space.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn run(self, panels: usize, mut prefetcher: Option<&mut Prefetcher>) {
        if panels < PANELS {
            // An odd last panel of all columns: too rare for tiles of rows of its own.
            for row in 0..self.rows.count {
                // SAFETY: the caller's promise.
                unsafe { self.row(row).run_tile::<1>(prefetcher.as_deref_mut()) };
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.run_tile::<PANELS>(prefetcher) };
        }
    }

    /// Returns the call for one of its rows.
    fn row(&self, row: usize) -> TileCall {
        let PackedRows { stride, x, factors, factors_stride, .. } = self.rows;
        let rows = PackedRows {
            count: 1,
            stride,
            x: x.wrapping_add(row),
            factors: factors.skip(row),
            factors_stride,
        };
        TileCall { rows, out: self.out.wrapping_add(row * RESULT_STRIDE), ..self.clone() }
    }

    /// Returns the number of dwords of packed x from one dword of a row to the next.
    #[inline(always)]
    fn stride<const P: usize, const R: usize>(&self) -> usize {
        if P == PANELS { R } else { self.rows.stride }
    }

    /// Adds the products of `P` panels to the results, for all rows or for one row if `P` is 1.
    ///
    /// # Safety
    /// The conditions of [`TileCall::run`] hold.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn run_tile<const P: usize>(self, prefetcher: Option<&mut Prefetcher>) {
        macro_rules! rows {
            ($call:ident; $($rows:literal)*) => {
                match self.rows.count {
                    $(
                        // SAFETY: the caller's promise.
                        $rows if const { P == PANELS || $rows == 1 } => unsafe { $call!($rows) },
                    )*
                    rows => unreachable!("no tile has {rows} rows"),
                }
            };
        }
        macro_rules! four {
            ($rows:literal) => {
                self.four::<P, $rows>(prefetcher)
            };
        }
        macro_rules! bytes {
            ($weights:expr) => {{
                let weights = $weights;
                macro_rules! bytes {
                    ($rows:literal) => {
                        self.bytes::<_, P, $rows>(weights, prefetcher)
                    };
                }
                rows!(bytes; 1 2 3 4 5 6)
            }};
        }
        const { assert!(tile_rows(Bits::Four) == 12 && tile_rows(Bits::Eight) == 6) };
        const { assert!(PANELS == 2) };
        match self.records.bits() {
            Bits::Four => rows!(four; 1 2 3 4 5 6 7 8 9 10 11 12),
            Bits::Eight => bytes!(Int8Weights),
            Bits::Five | Bits::FiveSigned => bytes!(UpperBits::<1>),
            Bits::SixSigned => bytes!(UpperBits::<2>),
            Bits::Table(table) => match table.index_bits() {
                2 => bytes!(FewBits::<false>::new(table)),
                3 => bytes!(FewBits::<true>::new(table)),
                _ => bytes!(TableWeights::new(table)),
            },
        }
    }

    /// Multiplies weights of 4 bits. The products of both digits of x are added to one sum: the
    /// high digit is multiplied by 16 times the weight, which still fits in a byte. With few rows
    /// each digit has a sum of its own, so that more chains hide the latency.
    ///
    /// # Safety
    /// The conditions of [`TileCall::run`] hold for `P` panels and `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn four<const P: usize, const R: usize>(self, mut prefetcher: Option<&mut Prefetcher>) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        let vectors = vectors(self.records);
        let stride = self.stride::<P, R>();
        let mut at = At::<P>::of(&self);
        for group in self.groups {
            let mut sums = [[_mm512_setzero_si512(); R]; P];
            let mut low_sums = [[_mm512_setzero_si512(); R]; P];
            let mut from = at.begin(prefetcher.is_some());
            let ahead = at.ahead(from);
            for _ in 0..vectors {
                prefetch(s, &mut prefetcher, from, ahead);
                // SAFETY: the group's vectors exist, and its packed rows have these steps.
                unsafe {
                    let mut weights = [_mm512_setzero_si512(); P];
                    let mut times_16 = [_mm512_setzero_si512(); P];
                    for p in 0..P {
                        let vector = _mm512_loadu_si512(from[p].cast());
                        (times_16[p], weights[p]) = nibbles(vector, false);
                    }
                    add_digit(&mut sums, times_16, at.x);
                    let low = if R <= SPLIT_ROWS { &mut low_sums } else { &mut sums };
                    add_digit(low, weights, at.x.wrapping_add(stride));
                    for p in 0..P {
                        let vector = _mm512_loadu_si512(from[p].cast());
                        (times_16[p], weights[p]) = nibbles(vector, true);
                    }
                    add_digit(&mut sums, times_16, at.x.wrapping_add(2 * stride));
                    let low = if R <= SPLIT_ROWS { &mut low_sums } else { &mut sums };
                    add_digit(low, weights, at.x.wrapping_add(3 * stride));
                }
                at.x = at.x.wrapping_add(4 * stride);
                from = from.map(|from| from.wrapping_add(64));
            }
            if R <= SPLIT_ROWS {
                for p in 0..P {
                    for r in 0..R {
                        sums[p][r] = _mm512_add_epi32(sums[p][r], low_sums[p][r]);
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { at.finish::<true, R>(group, sums) };
        }
    }

    /// Multiplies weights that are converted to unsigned bytes, with a sum for each digit of x.
    ///
    /// # Safety
    /// The conditions of [`TileCall::run`] hold for `P` panels and `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn bytes<W: WeightBytes, const P: usize, const R: usize>(
        self,
        weights: W,
        mut prefetcher: Option<&mut Prefetcher>,
    ) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        let (pairs, lines) = (steps(self.records.group()) / 2, vectors(self.records));
        let stride = self.stride::<P, R>();
        let mut at = At::<P>::of(&self);
        for group in self.groups {
            let mut high = [[_mm512_setzero_si512(); R]; P];
            let mut low = [[_mm512_setzero_si512(); R]; P];
            let from = at.begin(prefetcher.is_some());
            let ahead = at.ahead(from);
            let integers = from.map(|from| GroupIntegers::new(self.records, from, group));
            // SAFETY: the group exists.
            let mut vectors = integers.map(|group| unsafe { weights.begin(group) });
            for pair in 0..pairs {
                for line in lines * pair / pairs..lines * (pair + 1) / pairs {
                    let from = from.map(|from| from.wrapping_add(64 * line));
                    prefetch(s, &mut prefetcher, from, ahead);
                }
                let mut of_pair = [[_mm512_setzero_si512(); P]; 2];
                for p in 0..P {
                    // SAFETY: the group's steps exist.
                    let steps = unsafe { weights.pair(&mut vectors[p], pair) };
                    (of_pair[0][p], of_pair[1][p]) = (steps[0], steps[1]);
                }
                for step in of_pair {
                    // SAFETY: the group's packed rows have this step.
                    unsafe {
                        add_digit(&mut high, step, at.x);
                        add_digit(&mut low, step, at.x.wrapping_add(stride));
                    }
                    at.x = at.x.wrapping_add(2 * stride);
                }
            }
            for p in 0..P {
                for r in 0..R {
                    high[p][r] = whole(high[p][r], low[p][r]);
                }
            }
            // SAFETY: the caller's promise.
            unsafe { at.finish::<false, R>(group, high) };
        }
    }
}

/// Position of a call: a group of its panels and rows.
#[derive(Debug)]
struct At<const P: usize> {
    /// Record of each panel that contains the group. `place` is the index of the group in it.
    record: [*const u8; P],
    place: usize,
    in_record: usize,
    record_bytes: usize,
    head_bytes: usize,
    group_bytes: usize,
    /// Number of groups whose integers are stored together, less one.
    others: usize,
    /// End of the first panel. Each panel has `panel_bytes` bytes.
    end: *const u8,
    panel_bytes: usize,
    format: Grouped,
    /// Dwords of the group's packed rows.
    x: *const u32,
    factors: Factors,
    factors_stride: usize,
    out: *mut f32,
}

impl<const P: usize> At<P> {
    /// Returns the position of the first group of a call.
    #[inline(always)]
    fn of(call: &TileCall) -> At<P> {
        let records = call.records;
        let end = records.record_at(call.panel + 1, 0);
        let panel_bytes = end.addr() - records.record_at(call.panel, 0).addr();
        At {
            end,
            panel_bytes,
            record: std::array::from_fn(|p| records.record_at(call.panel + p, call.groups.start)),
            place: records.place(call.groups.start),
            in_record: records.in_record(),
            record_bytes: records.record_bytes(),
            head_bytes: records.head_bytes(),
            group_bytes: records.group_bytes(),
            others: records.format().groups_together() - 1,
            format: records.format(),
            x: call.rows.x,
            factors: call.rows.factors,
            factors_stride: call.rows.factors_stride,
            out: call.out,
        }
    }

    /// Returns the integers of the group, or of the groups that are stored together. Prefetches the
    /// scales and minimums that precede the integers of a later group, unless another prefetcher is
    /// active.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn begin(&self, prefetches: bool) -> [*const u8; P] {
        if !prefetches && self.place == 0 && self.in_record > 1 {
            let ahead = self.ahead(self.record);
            for record in self.record {
                for line in 0..self.head_bytes / 64 {
                    let at = record.wrapping_add(ahead + 64 * line);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
            }
        }
        let place = self.place & !self.others;
        let before = self.head_bytes + place * self.group_bytes;
        self.record.map(|record| record.wrapping_add(before))
    }

    /// Returns the prefetch distance of the panels' lines in bytes. Beyond the panels' ends it
    /// leads to the panels that follow all of these.
    #[inline(always)]
    fn ahead(&self, from: [*const u8; P]) -> usize {
        let is_beyond = from[0].wrapping_add(INTEGERS_PREFETCH_BYTES) >= self.end;
        INTEGERS_PREFETCH_BYTES + if is_beyond { (P - 1) * self.panel_bytes } else { 0 }
    }

    /// Converts the group's integer sums, adds them to the results, and advances to the next group.
    ///
    /// # Safety
    /// The conditions of [`TileCall::run`] hold.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn finish<const PLAIN: bool, const R: usize>(
        &mut self,
        group: usize,
        sums: [[__m512i; R]; P],
    ) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        for p in 0..P {
            // SAFETY: the record exists; the group has factors of all rows, and results have space
            // for whole panels.
            unsafe {
                let (scale, min) = record_ranges(s, self.format, self.record[p], self.place, 0);
                for r in 0..R {
                    let total = self.out.add(r * RESULT_STRIDE + p * COLS);
                    let before =
                        if group == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(total) };
                    let after = self.factors.add::<PLAIN>(r, before, sums[p][r], scale, min);
                    _mm512_storeu_ps(total, after);
                }
            }
        }
        self.place += 1;
        if self.place == self.in_record {
            self.place = 0;
            self.record = self.record.map(|record| record.wrapping_add(self.record_bytes));
        }
        self.factors = self.factors.skip(self.factors_stride);
    }
}

/// Prefetches the lines of `prefetcher` if there is one, otherwise the following lines of each
/// panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn prefetch<const P: usize>(
    s: Avx512,
    prefetcher: &mut Option<&mut Prefetcher>,
    from: [*const u8; P],
    ahead: usize,
) {
    match prefetcher {
        Some(prefetcher) => prefetcher.step(s),
        None => {
            for p in 0..P {
                _mm_prefetch::<_MM_HINT_T0>(from[p].wrapping_add(ahead).cast());
            }
        }
    }
}

/// Adds the products of a step's weights with one digit of each row; `x` holds a dword for each
/// row.
///
/// # Safety
/// `x` has `R` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn add_digit<const P: usize, const R: usize>(
    sums: &mut [[__m512i; R]; P],
    weights: [__m512i; P],
    x: *const u32,
) {
    for r in 0..R {
        // SAFETY: the caller's promise, and this function's own features.
        unsafe {
            let x = _mm512_set1_epi32(*x.add(r) as i32);
            for p in 0..P {
                sums[p][r] = vpdpbusd(sums[p][r], weights[p], x);
            }
        }
    }
}
