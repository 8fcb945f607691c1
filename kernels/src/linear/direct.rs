//! Kernel for few rows: weights are read from memory once and multiplied in registers.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::mem::MaybeUninit;

use super::prefetch::{Lines, Prefetcher};
use super::reader::{WeightReader, combine};
use super::sizes::PANELS;
use super::tiled::EdgeUnits;
use crate::simd::{MAX_LANES, Simd};
use crate::unroll::unroll_16;

/// Returns the number of panels processed at a time for `rows` rows. Each row of a plain weight is
/// a memory stream of its own, and the bandwidth is higher with fewer of them at a time; more
/// panels share the loads of x, which matter from five rows on. Grouped weights are one stream per
/// panel, and need independent sums to hide the latency of a multiply-add.
pub(super) const fn panels(rows: usize, grouped: bool) -> usize {
    if grouped || rows > 4 { PANELS } else { 1 }
}

/// Operands of a call besides the weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// Packed x: `[unit][row]`.
    pub x: *const f32,
    /// Sums of x, if the weight is grouped: `[segment][row]`.
    pub sums: *const f32,
    /// Results, with rows `stride` apart.
    pub out: *mut f32,
    pub stride: usize,
    /// Scratch with space for a segment of every panel.
    pub scratch: *mut f32,
}

/// Multiplies all `count <= DIRECT_ROWS` rows by `panels(count, W::GROUPED)` whole panels from
/// `panel` on.
///
/// # Safety
/// The panels are full, and `rows` describes `count` rows.
#[inline(always)]
pub(super) unsafe fn direct<S: Simd, W: WeightReader<S>>(
    s: S,
    reader: W,
    panel: usize,
    count: usize,
    rows: Rows,
) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        macro_rules! rows {
            ($($rows:literal)*) => {
                match count {
                    $(
                        $rows if const { $rows <= S::DIRECT_ROWS } => {
                            if const { panels($rows, W::GROUPED) == 1 } {
                                run::<S, W, 1, $rows>(s, reader, panel, rows);
                            } else {
                                run::<S, W, PANELS, $rows>(s, reader, panel, rows);
                            }
                        }
                    )*
                    _ => unreachable!("at most DIRECT_ROWS rows"),
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8);
    }
}

/// Multiplies `P` panels by `R` rows along all of k.
///
/// # Safety
/// The conditions of [`direct`] hold for `P` panels and `R` rows.
#[inline(always)]
unsafe fn run<S: Simd, W: WeightReader<S>, const P: usize, const R: usize>(
    s: S,
    reader: W,
    panel: usize,
    rows: Rows,
) {
    let chunk = W::UNITS * W::DWORDS;
    let (all, segment_units) = (reader.units(), reader.segment());
    let mut totals = [[s.zero(); R]; P];
    for segment in 0..all.div_ceil(segment_units) {
        let units = segment_units.min(all - segment * segment_units);
        let mut parts = [[s.zero(); R]; P];
        let mut x = rows.x.wrapping_add(segment * segment_units * R);
        let whole = units / chunk;
        if const { W::DWORDS > 1 && R > 2 } {
            // SAFETY: the panels are full, these chunks whole, and the scratch has space for them.
            unsafe {
                stage::<S, W, P>(s, reader, panel, segment, whole, rows.scratch);
                let next = if P == 1 {
                    Lines::NONE
                } else if (segment + 1) * segment_units < all {
                    reader.lines(panel, P, segment + 1)
                } else {
                    reader.lines(panel + P, P, 0)
                };
                let prefetcher = Prefetcher::new(next, whole * W::DWORDS);
                multiply_staged::<S, W, P, R>(s, whole, rows.scratch, x, &mut parts, prefetcher);
            }
            x = x.wrapping_add(whole * chunk * R);
        } else {
            for index in 0..whole {
                for p in 0..P {
                    reader.prefetch(s, panel + p, segment, index);
                }
                // SAFETY: the panels are full and the chunk whole; packed x has all its units.
                unsafe {
                    if const { W::DWORDS == 1 } {
                        let mut dwords = [s.zero_dwords(); P];
                        for (p, dword) in dwords.iter_mut().enumerate() {
                            *dword = reader.chunk(s, panel + p, segment, index).as_ref()[0];
                        }
                        multiply_dwords::<S, W, P, R>(s, dwords, x, &mut parts);
                    } else {
                        for (p, part) in parts.iter_mut().enumerate() {
                            let block = reader.chunk(s, panel + p, segment, index);
                            multiply_block::<S, W, R>(s, block, x, part);
                        }
                    }
                }
                x = x.wrapping_add(chunk * R);
            }
        }
        // Groups are whole chunks.
        if const { !W::GROUPED } && units % chunk > 0 {
            for (p, part) in parts.iter_mut().enumerate() {
                let edge = EdgeUnits::new(reader, panel + p, segment, units / chunk);
                // SAFETY: the chunk's first unit exists, and packed x has `units % chunk` more.
                unsafe { multiply_some(s, edge, units % chunk, x, part) };
            }
        }
        for (p, part) in parts.into_iter().enumerate() {
            // SAFETY: segments of panels that exist; sums of x cover `R` rows of each.
            unsafe {
                let (scale, min) = reader.scale(s, panel + p, segment);
                for (r, part) in part.into_iter().enumerate() {
                    let sum = rows.sums.wrapping_add(segment * R + r);
                    let total = totals[p][r];
                    totals[p][r] = combine(s, W::GROUPED, total, part, scale, min, sum);
                }
            }
        }
    }
    for (p, totals) in totals.into_iter().enumerate() {
        for (r, total) in totals.into_iter().enumerate() {
            // SAFETY: results have space for `P` panels of `R` rows.
            unsafe { s.store(rows.out.add(r * rows.stride + p * S::LANES), total) };
        }
    }
}

/// Adds the products of a chunk to `part`.
///
/// # Safety
/// `x` covers the units of a chunk for `R` rows.
#[inline(always)]
unsafe fn multiply_block<S: Simd, W: WeightReader<S>, const R: usize>(
    s: S,
    block: S::Block,
    x: *const f32,
    part: &mut [S::F; R],
) {
    unroll_16!(W::DWORDS, I => {
        let dword = block.as_ref()[I];
        for j in 0..W::UNITS {
            let weight = W::unit(s, dword, j);
            for r in 0..R {
                // SAFETY: the caller's promise.
                let x = s.splat(unsafe { *x.add((I * W::UNITS + j) * R + r) });
                part[r] = s.fma(weight, x, part[r]);
            }
        }
    });
}

/// Transposes the whole chunks of a segment into the scratch, panel by panel, as `[dword][panel]`:
/// with more rows the registers cannot hold both a chunk and the sums.
///
/// # Safety
/// The panels are full and the chunks whole; `to` has space for them.
#[inline(always)]
unsafe fn stage<S: Simd, W: WeightReader<S>, const P: usize>(
    s: S,
    reader: W,
    panel: usize,
    segment: usize,
    chunks: usize,
    to: *mut f32,
) {
    for p in 0..P {
        for index in 0..chunks {
            if P == 1 {
                reader.prefetch(s, panel + p, segment, index);
            }
            // SAFETY: the caller's promise.
            unsafe {
                let block = reader.chunk(s, panel + p, segment, index);
                let to = to.add((index * S::LANES * P + p) * S::LANES);
                for (i, &dword) in block.as_ref().iter().enumerate() {
                    s.store(to.add(i * P * S::LANES), s.bits(dword));
                }
            }
        }
    }
}

/// Adds the products of transposed chunks to `parts`.
///
/// # Safety
/// `dwords` holds `chunks` chunks of every panel, and `x` covers their units for `R` rows.
#[inline(always)]
unsafe fn multiply_staged<S: Simd, W: WeightReader<S>, const P: usize, const R: usize>(
    s: S,
    chunks: usize,
    dwords: *const f32,
    x: *const f32,
    parts: &mut [[S::F; R]; P],
    mut prefetcher: Prefetcher,
) {
    let mut sums = *parts;
    for i in 0..chunks * W::DWORDS {
        // A single panel was prefetched when it was staged.
        if const { P > 1 } {
            prefetcher.step(s);
        }
        let mut some = [s.zero_dwords(); P];
        for (p, dword) in some.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *dword = unsafe { s.load_dwords(dwords.add((i * P + p) * S::LANES).cast()) };
        }
        // SAFETY: the caller's promise.
        unsafe { multiply_dwords::<S, W, P, R>(s, some, x.add(i * W::UNITS * R), &mut sums) };
    }
    *parts = sums;
}

/// Adds the products of one dword vector of every panel to `parts`.
///
/// # Safety
/// `x` covers its units for `R` rows.
#[inline(always)]
unsafe fn multiply_dwords<S: Simd, W: WeightReader<S>, const P: usize, const R: usize>(
    s: S,
    dwords: [S::D; P],
    x: *const f32,
    parts: &mut [[S::F; R]; P],
) {
    for j in 0..W::UNITS {
        let mut weights = [s.zero(); P];
        for p in 0..P {
            weights[p] = W::unit(s, dwords[p], j);
        }
        for r in 0..R {
            // SAFETY: the caller's promise.
            let x = s.splat(unsafe { *x.add(j * R + r) });
            for p in 0..P {
                parts[p][r] = s.fma(weights[p], x, parts[p][r]);
            }
        }
    }
}

/// Adds the products of the first `units` units of a chunk to `part`: the same sums as
/// [`multiply_block`], for the end of k.
///
/// # Safety
/// The first unit exists; `x` covers `units` units for `R` rows.
#[inline(always)]
unsafe fn multiply_some<S: Simd, W: WeightReader<S>, const R: usize>(
    s: S,
    edge: EdgeUnits<W>,
    units: usize,
    x: *const f32,
    part: &mut [S::F; R],
) {
    // A chunk has at most `2 * LANES` units.
    let mut weights = MaybeUninit::<[f32; 2 * MAX_LANES * MAX_LANES]>::uninit();
    let weights = weights.as_mut_ptr().cast::<f32>();
    s.out_of_line(EdgeUnits { to: weights, stride: S::LANES, ..edge });
    for unit in 0..units {
        for (r, part) in part.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let weight = s.load(weights.add(unit * S::LANES));
                *part = s.fma(weight, s.splat(*x.add(unit * R + r)), *part);
            }
        }
    }
}
