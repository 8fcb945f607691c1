//! The register tile of the dot kernels: a few packed rows times a few weight rows, shared by the
//! linears and by attention scores.
//!
//! **The order of every sum.** Output (row, weight row) has one accumulator of `LANES` lanes. It
//! walks along k in steps of one pair (first vector, then second), and its lanes are added by the
//! fixed tree of `Simd::sum_lanes` at the end. Tile shape, blocking of k (accumulators are stored
//! and reloaded exactly) and neighbours do not enter, so a row's bits depend on that row alone.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are clearer, and surer to stay in registers, by index"
)]

use crate::simd::{Simd, SimdElement};

/// Geometry of a tile call. Strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct TileShape {
    /// Distance between packed rows, f32.
    pub x_stride: usize,
    /// Distance between weight rows.
    pub w_stride: usize,
    /// Whole pairs along k.
    pub pairs: usize,
    /// Elements behind the last whole pair; x is zero-padded there.
    pub tail: usize,
    /// Distance between accumulators of neighbouring rows, f32; those of neighbouring weight rows
    /// are `LANES` apart.
    pub acc_stride: usize,
    /// Accumulators start at zero instead of being reloaded.
    pub fresh: bool,
}

/// Packs `k` elements of one row as f32 in pair order, zero-padded to whole pairs.
///
/// # Safety
/// `from` is valid for `k` elements, `to` for `k` rounded up to whole pairs.
#[inline(always)]
pub(crate) unsafe fn pack_row<S: Simd, T: SimdElement>(
    s: S,
    from: *const T,
    k: usize,
    to: *mut f32,
) {
    let pair = 2 * S::LANES;
    let whole = k / pair;
    // SAFETY: `whole` pairs lie within `k` elements, and a tail within its rounded length.
    unsafe {
        for step in 0..whole {
            let value = T::load_pair(s, from.add(step * pair));
            <f32 as SimdElement>::store_pair(s, to.add(step * pair), value);
        }
        let tail = k - whole * pair;
        if tail > 0 {
            let value = T::load_pair_partial(s, from.add(whole * pair), tail);
            <f32 as SimdElement>::store_pair(s, to.add(whole * pair), value);
        }
    }
}

/// Adds the products of `rows <= TILE.0` packed rows and `cols <= TILE.1` weight rows to their
/// accumulators.
///
/// # Safety
/// `x` covers `rows` rows of `pairs` (and one more if `tail`) whole pairs, `w` covers `cols` rows of
/// `pairs * 2 * LANES + tail` elements, `acc` covers `rows` by `cols` accumulators.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, W: SimdElement>(
    s: S,
    (rows, cols): (usize, usize),
    x: *const f32,
    w: *const W,
    acc: *mut f32,
    shape: TileShape,
) {
    // SAFETY: `run` has the caller's contract for its constant rows and cols; a tile narrower than
    // the variant's is cut into columns of one.
    unsafe {
        macro_rules! by_cols {
            ($mr:literal) => {
                match (S::TILE.1, cols) {
                    (6, 6) => run::<S, W, $mr, 6>(s, x, w, acc, shape),
                    (4, 4) => run::<S, W, $mr, 4>(s, x, w, acc, shape),
                    (2, 2) => run::<S, W, $mr, 2>(s, x, w, acc, shape),
                    _ => {
                        for col in 0..cols {
                            let w = w.add(col * shape.w_stride);
                            run::<S, W, $mr, 1>(s, x, w, acc.add(col * S::LANES), shape);
                        }
                    }
                }
            };
        }
        match (S::TILE.0, rows) {
            (_, 1) => by_cols!(1),
            (_, 2) => by_cols!(2),
            (3 | 4, 3) => by_cols!(3),
            (4, 4) => by_cols!(4),
            _ => unreachable!("tiles have at most TILE.0 rows"),
        }
    }
}

/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn run<S: Simd, W: SimdElement, const MR: usize, const NR: usize>(
    s: S,
    x: *const f32,
    w: *const W,
    acc: *mut f32,
    shape: TileShape,
) {
    let pair = 2 * S::LANES;
    let mut sums = [[s.zero(); NR]; MR];
    // SAFETY: the caller's contract covers every offset used here.
    unsafe {
        if !shape.fresh {
            for i in 0..MR {
                for j in 0..NR {
                    sums[i][j] = s.load(acc.add(i * shape.acc_stride + j * S::LANES));
                }
            }
        }
        for index in 0..shape.pairs {
            let mut first = [s.zero(); NR];
            let mut second = [s.zero(); NR];
            for j in 0..NR {
                let from = w.add(j * shape.w_stride + index * pair);
                (first[j], second[j]) = W::load_pair(s, from);
            }
            let x = x.add(index * pair);
            step(s, &mut sums, x, shape.x_stride, first);
            step(s, &mut sums, x.add(S::LANES), shape.x_stride, second);
        }
        if shape.tail > 0 {
            let mut first = [s.zero(); NR];
            let mut second = [s.zero(); NR];
            for j in 0..NR {
                let from = w.add(j * shape.w_stride + shape.pairs * pair);
                (first[j], second[j]) = W::load_pair_partial(s, from, shape.tail);
            }
            let x = x.add(shape.pairs * pair);
            step(s, &mut sums, x, shape.x_stride, first);
            step(s, &mut sums, x.add(S::LANES), shape.x_stride, second);
        }
        for i in 0..MR {
            for j in 0..NR {
                s.store(acc.add(i * shape.acc_stride + j * S::LANES), sums[i][j]);
            }
        }
    }
}

/// One vector of each packed row times one vector of each weight row.
///
/// # Safety
/// `x` covers a vector of `MR` rows.
#[inline(always)]
unsafe fn step<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    sums: &mut [[S::F; NR]; MR],
    x: *const f32,
    x_stride: usize,
    w: [S::F; NR],
) {
    for i in 0..MR {
        // SAFETY: the caller's promise.
        let x = unsafe { s.load(x.add(i * x_stride)) };
        for j in 0..NR {
            sums[i][j] = s.fma(w[j], x, sums[i][j]);
        }
    }
}
