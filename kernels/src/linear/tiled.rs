//! More rows: a block of two panels is expanded to f32 once, into L1, and a register tile of some
//! rows by two vectors runs over it for every tile of rows.

#![allow(
    clippy::needless_range_loop,
    reason = "rows of a register tile are clearer, and surer to stay in registers, by index"
)]

use super::direct::unroll_16;
use super::form::{Dot, Form, Lines};
use super::{BLOCK_UNITS, RowTiles};
use crate::simd::{MAX_LANES, Simd};

/// Segments of a block at most: groups of 32 inputs, two inputs to a unit.
const MAX_SEGMENTS: usize = BLOCK_UNITS / 16;
/// Floats of an expanded block of two panels with its scales and minimums.
pub(super) const TILE_LEN: usize = (BLOCK_UNITS + 2 * MAX_SEGMENTS) * 2 * MAX_LANES;

/// `total` after a finished segment.
///
/// # Safety
/// If grouped, `sum` points to the sum of the segment's x.
#[inline(always)]
pub(super) unsafe fn combine<S: Simd, W: Form<S>>(
    s: S,
    total: S::F,
    part: S::F,
    (scale, min): (S::F, S::F),
    sum: *const f32,
) -> S::F {
    if W::GROUPED {
        // SAFETY: the caller's promise.
        s.fma(min, s.splat(unsafe { *sum }), s.fma(scale, part, total))
    } else {
        s.add(total, part)
    }
}

/// Where the parts of a product lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// Packed x of all rows of the pass; see `pack`.
    pub x: *const f32,
    /// Sums of x, `[segment][row]`, if grouped.
    pub sums: *const f32,
    /// Tiles of rows of the pass, and which of them.
    pub tiles: RowTiles,
    pub first_tile: usize,
    pub end_tile: usize,
    /// Results of the first tile's first row, rows `stride` apart.
    pub out: *mut f32,
    pub stride: usize,
    /// `TILE_LEN` floats of the thread's own.
    pub scratch: *mut f32,
}

/// Adds block `block` of k of two panels from `panel` on to the results, which the first block sets.
/// `next` is the memory to ask for meanwhile.
///
/// # Safety
/// The first panel exists; `parts` describes packed rows and results of two panels.
#[inline(always)]
pub(super) unsafe fn tiled<S: Simd, W: Form<S>>(
    s: S,
    form: W,
    panel: usize,
    block: usize,
    parts: Parts,
    next: Lines,
) {
    let units = BLOCK_UNITS.min(form.units() - block * BLOCK_UNITS);
    for half in 0..2 {
        if (panel + half) * S::LANES < form.columns() {
            // SAFETY: the panel exists; the scratch has room for two halves.
            unsafe {
                expand(s, form, panel + half, block, units, parts.scratch.add(half * S::LANES))
            };
        }
    }
    let tiles = parts.end_tile - parts.first_tile;
    let lines = next.rows * next.lines;
    let mut ahead = Ahead { lines: next, line: 0, left: lines, every: 0 };
    ahead.every = (units * tiles / lines.max(1)).max(1);
    let first_row = parts.tiles.start(parts.first_tile);
    for tile in parts.first_tile..parts.end_tile {
        let row = parts.tiles.start(tile);
        let count = parts.tiles.start(tile + 1) - row;
        let segments = BLOCK_UNITS / form.segment();
        let product = Product {
            x: parts.x.wrapping_add(block * BLOCK_UNITS * parts.tiles.rows + row * units),
            sums: parts.sums.wrapping_add(block * segments * parts.tiles.rows + row),
            sums_stride: parts.tiles.rows,
            out: parts.out.wrapping_add((row - first_row) * parts.stride),
            stride: parts.stride,
            weight: parts.scratch,
            units,
            segment: form.segment(),
            is_first: block == 0,
        };
        // SAFETY: packed rows, results and the expanded block hold what `product` says.
        unsafe { by_rows::<S, W>(s, count, product, &mut ahead) };
    }
}

/// Writes the units of a block of one panel as f32, `2 * LANES` apart, then scales and minimums.
///
/// # Safety
/// The panel's first column and the block's first unit exist; `to` has room for them.
#[inline(always)]
unsafe fn expand<S: Simd, W: Form<S>>(
    s: S,
    form: W,
    panel: usize,
    block: usize,
    units: usize,
    to: *mut f32,
) {
    let (width, chunk) = (2 * S::LANES, W::UNITS * W::DWORDS);
    let segment_units = form.segment();
    let first = block * (BLOCK_UNITS / segment_units);
    let whole = if form.is_full(panel) { units / chunk } else { 0 };
    let per_segment = segment_units / chunk;
    for segment in 0..units.div_ceil(segment_units) {
        let chunks = (units - segment * segment_units).min(segment_units).div_ceil(chunk);
        for index in 0..chunks {
            let at = segment * per_segment + index;
            // SAFETY: whole chunks of full panels exist entirely, others in part; a chunk that ends
            // beyond the block's units still ends within the block.
            unsafe {
                let dwords = if at < whole {
                    form.chunk(s, panel, first + segment, index)
                } else {
                    form.edge(s, panel, first + segment, index)
                };
                let to = to.add(at * chunk * width);
                unroll_16!(W::DWORDS, I => {
                    for j in 0..W::UNITS {
                        s.store(to.add((I * W::UNITS + j) * width), W::unit(s, dwords.as_ref()[I], j));
                    }
                });
            }
        }
        if W::GROUPED {
            // SAFETY: the segment exists, and the scratch has room for its scale and minimum.
            unsafe {
                let (scale, min) = form.scale(s, panel, first + segment);
                let to = to.add((BLOCK_UNITS + 2 * segment) * width);
                s.store(to, scale);
                s.store(to.add(width), min);
            }
        }
    }
}

/// Memory that is asked for a line at a time while sums are made.
struct Ahead {
    lines: Lines,
    line: usize,
    left: usize,
    /// Units between two lines.
    every: usize,
}

impl Ahead {
    #[inline(always)]
    fn step<S: Simd>(&mut self, s: S) {
        if self.left > 0 {
            s.prefetch_l2(self.lines.at.wrapping_add(self.line * 64));
            self.left -= 1;
            self.line += 1;
            if self.line == self.lines.lines {
                self.line = 0;
                self.lines.at = self.lines.at.wrapping_add(self.lines.stride);
            }
        }
    }
}

/// One tile of rows times an expanded block.
#[derive(Clone, Copy)]
struct Product {
    /// `[unit][row of the tile]`.
    x: *const f32,
    sums: *const f32,
    sums_stride: usize,
    out: *mut f32,
    stride: usize,
    weight: *const f32,
    units: usize,
    segment: usize,
    is_first: bool,
}

/// # Safety
/// `product` describes `rows <= TILE_ROWS` rows.
#[inline(always)]
unsafe fn by_rows<S: Simd, W: Form<S>>(s: S, rows: usize, product: Product, ahead: &mut Ahead) {
    macro_rules! choose {
        ($($rows:literal)*) => {
            match rows {
                $(
                    // SAFETY: the caller's promise is the callee's.
                    $rows if $rows <= S::TILE_ROWS => unsafe {
                        multiply::<S, W, $rows>(s, product, ahead);
                    },
                )*
                _ => unreachable!("a tile has at most TILE_ROWS rows"),
            }
        };
    }
    choose!(1 2 3 4 5 6 7 8 9 10 11 12 13);
}

/// # Safety
/// As [`by_rows`], for `R` rows.
#[inline(always)]
unsafe fn multiply<S: Simd, W: Form<S>, const R: usize>(s: S, product: Product, ahead: &mut Ahead) {
    let width = 2 * S::LANES;
    let Product { mut x, mut sums, weight, .. } = product;
    let mut scale = weight.wrapping_add(BLOCK_UNITS * width);
    let mut done = 0;
    let mut is_first = product.is_first;
    while done < product.units {
        let end = product.units.min(done + product.segment);
        let mut parts = [[s.zero(); 2]; R];
        while done < end {
            ahead.step(s);
            let stop = end.min(done + ahead.every);
            while done < stop {
                // SAFETY: `done` is below the units of x and of the expanded block.
                unsafe {
                    let at = weight.add(done * width);
                    let (first, second) = (s.load(at), s.load(at.add(S::LANES)));
                    for r in 0..R {
                        let x = s.splat(*x.add(r));
                        parts[r][0] = W::Dot::step(s, first, x, parts[r][0]);
                        parts[r][1] = W::Dot::step(s, second, x, parts[r][1]);
                    }
                }
                x = x.wrapping_add(R);
                done += 1;
            }
        }
        for (r, part) in parts.into_iter().enumerate() {
            for (half, part) in part.into_iter().enumerate() {
                let at = half * S::LANES;
                // SAFETY: results have `R` rows of two vectors; scales and sums of x as above.
                unsafe {
                    let to = product.out.add(r * product.stride + at);
                    let total = if is_first { s.zero() } else { s.load(to) };
                    let scale = if W::GROUPED {
                        (s.load(scale.add(at)), s.load(scale.add(width + at)))
                    } else {
                        (s.zero(), s.zero())
                    };
                    s.store(to, combine::<S, W>(s, total, part, scale, sums.wrapping_add(r)));
                }
            }
        }
        scale = scale.wrapping_add(2 * width);
        sums = sums.wrapping_add(product.sums_stride);
        is_first = false;
    }
}
