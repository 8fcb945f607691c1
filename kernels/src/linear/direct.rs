//! Few rows: weights go from memory through registers into the sums, once.

use super::form::{Dot, Form};
use super::tiled::combine;
use crate::simd::{MAX_LANES, Simd};

/// Repeats `$body` with `$i` a constant from 0 to 15, below `$end`.
macro_rules! unroll_16 {
    ($end:expr, $i:ident => $body:expr) => {
        unroll_16!(@ $end, $i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $end:expr, $i:ident => $body:expr; $($value:literal)*) => {
        $(
            if $value < $end {
                const $i: usize = $value;
                $body
            }
        )*
    };
}
pub(super) use unroll_16;

/// Panels at a time, for `rows` rows: enough independent sums to hide the latency of a multiply-add.
pub(super) const fn panels(rows: usize, grouped: bool) -> usize {
    match (rows, grouped) {
        (1 | 2, true) => 4,
        _ => 2,
    }
}

/// What a call reads and writes besides the weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// Packed x: `[unit][row]`.
    pub x: *const f32,
    /// Sums of x, if grouped: `[segment][row]`.
    pub sums: *const f32,
    /// Results, rows `stride` apart.
    pub out: *mut f32,
    pub stride: usize,
    /// Room for a chunk of every panel.
    pub scratch: *mut f32,
}

/// All `rows <= 4` rows times `panels(rows)` whole panels from `panel` on.
///
/// # Safety
/// The panels are full, `rows` describes that many rows.
#[inline(always)]
pub(super) unsafe fn direct<S: Simd, W: Form<S>>(
    s: S,
    form: W,
    panel: usize,
    count: usize,
    rows: Rows,
) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        match (count, W::GROUPED) {
            (1, false) => run::<S, W, 2, 1>(s, form, panel, rows),
            (1, true) => run::<S, W, 4, 1>(s, form, panel, rows),
            (2, false) => run::<S, W, 2, 2>(s, form, panel, rows),
            (2, true) => run::<S, W, 4, 2>(s, form, panel, rows),
            (3, _) => run::<S, W, 2, 3>(s, form, panel, rows),
            _ => run::<S, W, 2, 4>(s, form, panel, rows),
        }
    }
}

/// # Safety
/// As [`direct`], for `P` panels and `R` rows.
#[inline(always)]
unsafe fn run<S: Simd, W: Form<S>, const P: usize, const R: usize>(
    s: S,
    form: W,
    panel: usize,
    rows: Rows,
) {
    let chunk = W::UNITS * W::DWORDS;
    let (all, segment_units) = (form.units(), form.segment());
    let mut totals = [[s.zero(); R]; P];
    for segment in 0..all.div_ceil(segment_units) {
        let units = segment_units.min(all - segment * segment_units);
        let mut parts = [[s.zero(); R]; P];
        let mut x = rows.x.wrapping_add(segment * segment_units * R);
        for index in 0..units / chunk {
            for (p, part) in parts.iter_mut().enumerate() {
                form.prefetch(s, panel + p, segment, index);
                // SAFETY: the panel is full and the chunk whole; packed x has all its units, and
                // the scratch room for its dwords.
                unsafe {
                    let block = form.chunk(s, panel + p, segment, index);
                    if W::DWORDS > 1 && R > 2 {
                        for (i, &dword) in block.as_ref().iter().enumerate() {
                            s.store(rows.scratch.add((i * P + p) * S::LANES), s.bits(dword));
                        }
                    } else {
                        multiply_block::<S, W, R>(s, block, x, part);
                    }
                }
            }
            if W::DWORDS > 1 && R > 2 {
                // SAFETY: as above.
                unsafe { multiply_stored::<S, W, P, R>(s, rows.scratch, x, &mut parts) };
            }
            x = x.wrapping_add(chunk * R);
        }
        if units % chunk > 0 {
            for (p, part) in parts.iter_mut().enumerate() {
                // SAFETY: the chunk's first unit exists, and packed x has `units % chunk` more.
                unsafe {
                    let block = form.edge(s, panel + p, segment, units / chunk);
                    multiply_some::<S, W, R>(s, block, units % chunk, x, part);
                }
            }
        }
        for (p, part) in parts.into_iter().enumerate() {
            // SAFETY: segments of panels that exist; sums of x cover `R` rows of each.
            unsafe {
                let scale = form.scale(s, panel + p, segment);
                for (r, part) in part.into_iter().enumerate() {
                    let sum = rows.sums.wrapping_add(segment * R + r);
                    totals[p][r] = combine::<S, W>(s, totals[p][r], part, scale, sum);
                }
            }
        }
    }
    for (p, totals) in totals.into_iter().enumerate() {
        for (r, total) in totals.into_iter().enumerate() {
            // SAFETY: results have room for `P` panels of `R` rows.
            unsafe { s.store(rows.out.add(r * rows.stride + p * S::LANES), total) };
        }
    }
}

/// # Safety
/// `x` covers the units of a chunk for `R` rows.
#[inline(always)]
unsafe fn multiply_block<S: Simd, W: Form<S>, const R: usize>(
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
                part[r] = W::Dot::step(s, weight, x, part[r]);
            }
        }
    });
}

/// A chunk of `P` panels from memory: with more rows the registers do not hold both the chunk and
/// the sums.
///
/// # Safety
/// `dwords` holds a chunk of `P` panels, `x` covers its units for `R` rows.
#[inline(always)]
unsafe fn multiply_stored<S: Simd, W: Form<S>, const P: usize, const R: usize>(
    s: S,
    dwords: *const f32,
    x: *const f32,
    parts: &mut [[S::F; R]; P],
) {
    let mut sums = *parts;
    for i in 0..W::DWORDS {
        for (p, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let dword = unsafe { s.load_dwords(dwords.add((i * P + p) * S::LANES).cast()) };
            for j in 0..W::UNITS {
                let weight = W::unit(s, dword, j);
                for r in 0..R {
                    // SAFETY: the caller's promise.
                    let x = s.splat(unsafe { *x.add((i * W::UNITS + j) * R + r) });
                    sums[r] = W::Dot::step(s, weight, x, sums[r]);
                }
            }
        }
    }
    *parts = sums;
}

/// The first `units` units of a chunk; the same sums, for the end of k.
///
/// # Safety
/// `x` covers `units` units for `R` rows.
#[inline(always)]
unsafe fn multiply_some<S: Simd, W: Form<S>, const R: usize>(
    s: S,
    block: S::Block,
    units: usize,
    x: *const f32,
    part: &mut [S::F; R],
) {
    let mut buffer = [0.0f32; 2 * MAX_LANES * MAX_LANES];
    for (i, &dword) in block.as_ref().iter().enumerate().take(W::DWORDS) {
        for j in 0..W::UNITS {
            // SAFETY: a chunk has at most `2 * LANES` units.
            unsafe {
                let to = buffer.as_mut_ptr().add((i * W::UNITS + j) * S::LANES);
                s.store(to, W::unit(s, dword, j));
            }
        }
    }
    for unit in 0..units {
        for (r, part) in part.iter_mut().enumerate() {
            // SAFETY: as above, and the caller's promise.
            unsafe {
                let weight = s.load(buffer.as_ptr().add(unit * S::LANES));
                *part = W::Dot::step(s, weight, s.splat(*x.add(unit * R + r)), *part);
            }
        }
    }
}
