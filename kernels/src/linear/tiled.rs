//! Kernel for more rows: a block of `PANELS` panels is expanded to f32 once, into L1, and a
//! register tile of some rows by `PANELS` vectors runs over it for every tile of rows.

#![allow(
    clippy::needless_range_loop,
    reason = "rows of a register tile are clearer, and surer to stay in registers, by index"
)]

use super::prefetch::{Lines, Prefetcher};
use super::reader::{WeightReader, combine};
use super::rows::RowTiles;
use super::sizes::{BLOCK_UNITS, PANELS};
use crate::simd::{MAX_LANES, OutOfLine, Simd};
use crate::unroll::unroll_16;

/// Maximum number of segments in a block: groups of 16 inputs, one input per unit.
const MAX_SEGMENTS: usize = BLOCK_UNITS / 16;
/// Units in an unrolled step of the product.
const STEP: usize = 4;
/// Floats of a thread's scratch before its results: an expanded block of `PANELS` panels with its
/// scales and minimums. `avx512` and `amx` use it for less data.
pub(super) const TILE_LEN: usize = (BLOCK_UNITS + 2 * MAX_SEGMENTS) * PANELS * MAX_LANES;

/// Operands of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// Packed x of all rows of the pass; see `pack`.
    pub x: *const f32,
    /// Sums of x, `[segment][row]`, if the weight is grouped.
    pub sums: *const f32,
    /// Tiles of rows of the pass. The product covers `first_tile..end_tile`.
    pub tiles: RowTiles,
    pub first_tile: usize,
    pub end_tile: usize,
    /// Results of the first tile's first row, with rows `stride` apart.
    pub out: *mut f32,
    pub stride: usize,
    /// `TILE_LEN` floats of the thread's own scratch.
    pub scratch: *mut f32,
}

/// Adds the products of block `block` of k with `PANELS` panels from `panel` on to the results; the
/// first block sets them. Meanwhile prefetches `next`, in this order.
///
/// # Safety
/// The first panel exists; `parts` describes packed rows and results of `PANELS` panels.
#[inline(always)]
pub(super) unsafe fn tiled<S: Simd, W: WeightReader<S>>(
    s: S,
    reader: W,
    panel: usize,
    block: usize,
    parts: Parts,
    next: [Lines; 2],
) {
    let units = BLOCK_UNITS.min(reader.units() - block * BLOCK_UNITS);
    for p in 0..PANELS {
        if (panel + p) * S::LANES < reader.columns() {
            // SAFETY: the panel exists; the scratch has space for every panel.
            unsafe { expand(s, reader, panel + p, block, units, parts.scratch.add(p * S::LANES)) };
        }
    }
    let segment = reader.segment();
    if const { W::GROUPED } {
        s.out_of_line(ExpandedBlock::<true> { parts, block, units, segment, next });
    } else {
        s.out_of_line(ExpandedBlock::<false> { parts, block, units, segment, next });
    }
}

/// The products of an expanded block with all tiles of rows: a function for all formats with a
/// scale and a minimum, and one for those without. The code that constructs one guarantees that
/// packed rows, results and the block are as described.
struct ExpandedBlock<const GROUPED: bool> {
    parts: Parts,
    block: usize,
    units: usize,
    segment: usize,
    next: [Lines; 2],
}

impl<S: Simd, const GROUPED: bool> OutOfLine<S> for ExpandedBlock<GROUPED> {
    #[inline(always)]
    fn run(self, s: S) {
        let ExpandedBlock { parts, block, units, segment, next } = self;
        let tiles = parts.end_tile - parts.first_tile;
        let mut prefetcher = Prefetcher::with_following(next[0], next[1], units / STEP * tiles);
        let first_row = parts.tiles.start(parts.first_tile);
        for tile in parts.first_tile..parts.end_tile {
            let row = parts.tiles.start(tile);
            let count = parts.tiles.start(tile + 1) - row;
            let segments = BLOCK_UNITS / segment;
            let product = Product {
                x: parts.x.wrapping_add(block * BLOCK_UNITS * parts.tiles.rows + row * units),
                sums: parts.sums.wrapping_add(block * segments * parts.tiles.rows + row),
                sums_stride: parts.tiles.rows,
                out: parts.out.wrapping_add((row - first_row) * parts.stride),
                stride: parts.stride,
                weight: parts.scratch,
                units,
                segment,
                is_first: block == 0,
            };
            // SAFETY: packed rows, results and the expanded block are as described by `product`.
            unsafe { by_rows::<S, GROUPED>(s, count, product, &mut prefetcher) };
        }
    }
}

/// Expands the units of a block of one panel to f32, `PANELS * LANES` apart, followed by scales and
/// minimums.
///
/// # Safety
/// The panel's first column and the block's first unit exist; `to` has space for them.
#[inline(always)]
unsafe fn expand<S: Simd, W: WeightReader<S>>(
    s: S,
    reader: W,
    panel: usize,
    block: usize,
    units: usize,
    to: *mut f32,
) {
    let (width, chunk) = (PANELS * S::LANES, W::UNITS * W::DWORDS);
    let segment_units = reader.segment();
    let first = block * (BLOCK_UNITS / segment_units);
    let whole = if reader.is_full(panel) { units / chunk } else { 0 };
    let per_segment = segment_units / chunk;
    for segment in 0..units.div_ceil(segment_units) {
        let chunks = (units - segment * segment_units).min(segment_units).div_ceil(chunk);
        let full = chunks.min(whole.saturating_sub(segment * per_segment));
        let at = |index: usize| (segment * per_segment + index) * chunk * width;
        // SAFETY: whole chunks of full panels exist entirely, others in part; a chunk that ends
        // beyond the block's units still ends within the block.
        unsafe {
            for index in 0..full {
                let dwords = reader.chunk(s, panel, first + segment, index);
                store_units::<S, W>(s, dwords, to.add(at(index)), width);
            }
            for index in full..chunks {
                let edge = EdgeUnits::new(reader, panel, first + segment, index);
                s.out_of_line(EdgeUnits { to: to.add(at(index)), stride: width, ..edge });
            }
        }
        if W::GROUPED {
            // SAFETY: the segment exists, and the scratch has space for its scale and minimum.
            unsafe {
                let (scale, min) = reader.scale(s, panel, first + segment);
                let to = to.add((BLOCK_UNITS + 2 * segment) * width);
                s.store(to, scale);
                s.store(to.add(width), min);
            }
        }
    }
}

/// The units of a chunk that exists in part, stored as f32, `stride` apart: compiled once, since
/// only the ends of rows and columns have such chunks. The code that constructs one guarantees that
/// its first column and unit exist, and that `to` has space for a chunk.
pub(super) struct EdgeUnits<W> {
    pub reader: W,
    pub panel: usize,
    pub segment: usize,
    pub index: usize,
    pub to: *mut f32,
    pub stride: usize,
}

impl<W> EdgeUnits<W> {
    /// Returns the units of a chunk, without the memory that they are stored in.
    #[inline(always)]
    pub(super) fn new(reader: W, panel: usize, segment: usize, index: usize) -> EdgeUnits<W> {
        EdgeUnits { reader, panel, segment, index, to: std::ptr::null_mut(), stride: 0 }
    }
}

impl<S: Simd, W: WeightReader<S>> OutOfLine<S> for EdgeUnits<W> {
    #[inline(always)]
    fn run(self, s: S) {
        let EdgeUnits { reader, panel, segment, index, to, stride } = self;
        // SAFETY: guaranteed by the code that constructs it.
        unsafe {
            let dwords = reader.edge(s, panel, segment, index);
            store_units::<S, W>(s, dwords, to, stride);
        }
    }
}

/// Stores the units of a chunk as f32, `stride` apart.
///
/// # Safety
/// `to` has space for them.
#[inline(always)]
unsafe fn store_units<S: Simd, W: WeightReader<S>>(
    s: S,
    dwords: S::Block,
    to: *mut f32,
    stride: usize,
) {
    unroll_16!(W::DWORDS, I => {
        for j in 0..W::UNITS {
            let unit = W::unit(s, dwords.as_ref()[I], j);
            // SAFETY: the caller's promise.
            unsafe { s.store(to.add((I * W::UNITS + j) * stride), unit) };
        }
    });
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

/// Multiplies one tile of rows by the expanded block.
///
/// # Safety
/// `product` describes `rows <= TILE_ROWS` rows.
#[inline(always)]
unsafe fn by_rows<S: Simd, const GROUPED: bool>(
    s: S,
    rows: usize,
    product: Product,
    prefetcher: &mut Prefetcher,
) {
    macro_rules! choose {
        ($($rows:literal)*) => {
            match rows {
                $(
                    // SAFETY: the caller's promise is the callee's.
                    $rows if const { $rows <= S::TILE_ROWS } => unsafe {
                        multiply::<S, GROUPED, $rows>(s, product, prefetcher);
                    },
                )*
                _ => unreachable!("a tile has at most TILE_ROWS rows"),
            }
        };
    }
    choose!(1 2 3 4 5 6 7 8 9);
}

/// Multiplies a tile of `R` rows by the expanded block.
///
/// # Safety
/// The conditions of [`by_rows`] hold for `R` rows.
#[inline(always)]
unsafe fn multiply<S: Simd, const GROUPED: bool, const R: usize>(
    s: S,
    product: Product,
    prefetcher: &mut Prefetcher,
) {
    let width = PANELS * S::LANES;
    let Product { mut x, mut sums, weight, .. } = product;
    let mut scale = weight.wrapping_add(BLOCK_UNITS * width);
    let mut done = 0;
    let mut is_first = product.is_first;
    while done < product.units {
        let end = product.units.min(done + product.segment);
        let mut parts = [[s.zero(); PANELS]; R];
        // Several units per step, since counts and branches would take issue slots from the
        // products.
        let step = if R > 8 { STEP / 2 } else { STEP };
        while done + step <= end {
            prefetcher.step(s);
            for unit in 0..step {
                // SAFETY: these are units of x and of the expanded block.
                unsafe {
                    let weight = weight.add((done + unit) * width);
                    multiply_unit::<S, R>(s, weight, x.add(unit * R), &mut parts);
                }
            }
            x = x.wrapping_add(step * R);
            done += step;
        }
        while done < end {
            // SAFETY: as above.
            unsafe { multiply_unit::<S, R>(s, weight.add(done * width), x, &mut parts) };
            x = x.wrapping_add(R);
            done += 1;
        }
        for (r, part) in parts.into_iter().enumerate() {
            for (p, part) in part.into_iter().enumerate() {
                let at = p * S::LANES;
                // SAFETY: results have `R` rows of `PANELS` vectors; scales and sums of x as above.
                unsafe {
                    let to = product.out.add(r * product.stride + at);
                    let total = if is_first { s.zero() } else { s.load(to) };
                    let (scale, min) = if GROUPED {
                        (s.load(scale.add(at)), s.load(scale.add(width + at)))
                    } else {
                        (s.zero(), s.zero())
                    };
                    let sum = sums.wrapping_add(r);
                    s.store(to, combine(s, GROUPED, total, part, scale, min, sum));
                }
            }
        }
        scale = scale.wrapping_add(2 * width);
        sums = sums.wrapping_add(product.sums_stride);
        is_first = false;
    }
}

/// Adds the products of one unit of `PANELS` panels and `R` rows to `parts`.
///
/// # Safety
/// `weight` holds `PANELS` vectors, and `x` a value for each row.
#[inline(always)]
unsafe fn multiply_unit<S: Simd, const R: usize>(
    s: S,
    weight: *const f32,
    x: *const f32,
    parts: &mut [[S::F; PANELS]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut weights = [s.zero(); PANELS];
        for p in 0..PANELS {
            weights[p] = s.load(weight.add(p * S::LANES));
        }
        for r in 0..R {
            let x = s.splat(*x.add(r));
            for p in 0..PANELS {
                parts[r][p] = s.fma(weights[p], x, parts[r][p]);
            }
        }
    }
}
