//! Grouped weights in bf16 linears with AVX512-VNNI and activations of 12 bits: products of small
//! integers, four per lane.
//!
//! A group of x is converted to integers of 12 bits: multiples of 2^-11 of the power of two above
//! its largest value. Values of at least 2^-3 of that power keep all their bits. The integers of a
//! weight are multiplied as they are stored in their records, with one instruction for four inputs
//! and sixteen columns, executed twice for the two bytes of x. With 4 bits, 16 times a weight still
//! fits in a byte, so the products of both bytes are added to one sum. Integers of other formats
//! are converted to unsigned bytes first.
//!
//! **The order of every sum.** Products and sums within a group are exact. `part` and `sum(x)` of a
//! group are rounded to f32 at most once; then the groups are added in order, as on all paths.
//!
//! - `pack`: x as integers, in two bytes.
//! - `shape`: sizes of panels and tiles.
//! - `weights`: decoding of the vectors of a record.
//! - `factors`: conversion of integer sums to results.
//! - `multiply`: some rows by some columns.
//! - `tiles`: more rows with AMX, also with activations of 8 bits; `products`: one product of its
//!   tiles.

mod factors;
mod multiply;
mod pack;
mod products;
mod shape;
mod tiles;
mod weights;

use std::ops::Range;

use half::bf16;
use model::quantized_format::{ActivationFormat, Grouped, WeightFormat};
use multiply::{PackedRows, TileCall};
use shape::{BLOCK, COLS, PANELS, tile_rows, units_of};

use super::factors::FACTORS;
use super::pack::Pack;
use super::path::{MultiplicationPath, PackedLayout, Shape};
use super::prefetch::{Lines, Prefetcher};
use super::reader::Records;
use super::rows::RowTiles;
use super::sizes::{BLOCK_UNITS, PACK_ROWS, RESULT_STRIDE, TASK_COLS};
use super::task::{Sums, TaskOperands};
use super::tuning::{INTEGER_TILES_ROWS, VECTOR_COLS};
use super::{amx, bytes};
use crate::amx::tiles::TILE;
use crate::variant::Variant;

/// The VNNI path, without AMX tiles; see the module documentation.
pub(super) enum Multiplication {}

impl MultiplicationPath for Multiplication {
    type Reader = Records;

    fn fits(variant: Variant, _: Shape) -> bool {
        let wide = matches!(variant, Variant::Avx512 | Variant::Avx512Bf16 | Variant::Amx);
        wide && is_x86_feature_detected!("avx512vnni")
    }

    fn layout(Shape { rows, k, format, .. }: Shape) -> PackedLayout {
        let format = grouped(format);
        let tiles = RowTiles::even(rows, tile_rows(format.bits), VECTOR_COLS, BLOCK);
        packed_layout(tiles, k, format)
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(task: &Pack<bf16>) {
        // SAFETY: the caller's promise.
        unsafe { pack::pack(task, false) };
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn multiply(task: &Sums<Records>) {
        let Sums { reader, area } = task;
        let (group, groups) = (reader.group(), reader.groups());
        let (first, end) = (area.cols.start / COLS, area.cols.end.div_ceil(COLS));
        let together = |panel: usize| PANELS.min(end - panel);
        let units = groups * units_of(group);
        let call = |panel: usize, tile: usize, block: usize, groups: Range<usize>| TileCall {
            records: *reader,
            panel,
            rows: PackedRows::of(area, tile, units, block, groups.start),
            groups,
            out: area
                .results()
                .wrapping_add((area.tiles.start(tile) - first_row(area)) * RESULT_STRIDE)
                .wrapping_add((panel - first) * COLS),
        };
        if area.tiles.count == 1 {
            for panel in (first..end).step_by(PANELS) {
                // SAFETY: panels, rows and groups exist; the rest is the caller's promise.
                unsafe {
                    call(panel, area.row_tiles.start, 0, 0..groups).run(together(panel), None);
                }
            }
            return;
        }
        let per_block = area.tiles.block / units_of(group);
        let of_block = |block: usize| block * per_block..groups.min((block + 1) * per_block);
        for (run, is_last) in area.runs(area.tiles.block, groups.div_ceil(per_block)) {
            for panel in (first..end).step_by(PANELS) {
                for block in run.clone() {
                    let next = if block + 1 < run.end {
                        reader.lines_of(panel, together(panel), of_block(block + 1))
                    } else if panel + PANELS < end {
                        let panel = panel + PANELS;
                        reader.lines_of(panel, together(panel), of_block(run.start))
                    } else if !is_last {
                        reader.lines_of(first, together(first), of_block(run.end))
                    } else {
                        Lines::NONE
                    };
                    let groups = of_block(block);
                    let steps = groups.len() * weights::vectors(*reader) * area.row_tiles.len();
                    let x = if panel + PANELS < end {
                        Lines::NONE
                    } else {
                        area.x_after(&run, block, units)
                    };
                    let mut prefetcher = Prefetcher::with_following(next, x, steps);
                    for tile in area.row_tiles.clone() {
                        // SAFETY: as above.
                        unsafe {
                            let call = call(panel, tile, block, groups.clone());
                            call.run(together(panel), Some(&mut prefetcher));
                        }
                    }
                }
            }
        }
    }
}

/// The path with AMX tiles; see the module documentation.
pub(super) enum TileMultiplication {}

impl MultiplicationPath for TileMultiplication {
    type Reader = Records;

    const UNFINISHED_LEN: usize = PACK_ROWS * TASK_COLS;

    fn fits(variant: Variant, shape: Shape) -> bool {
        let tiles = variant == Variant::Amx && shape.rows >= INTEGER_TILES_ROWS;
        tiles && Multiplication::fits(variant, shape)
    }

    fn layout(Shape { rows, k, format, .. }: Shape) -> PackedLayout {
        let tiles = RowTiles::whole(rows, TILE, amx::task_cols(rows), BLOCK_UNITS);
        packed_layout(tiles, k, grouped(format))
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(task: &Pack<bf16>) {
        // SAFETY: the caller's promise.
        unsafe { pack::pack(task, true) };
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn multiply(task: &Sums<Records>) {
        // SAFETY: the caller's promise.
        unsafe { tiles::sums(task.reader, &task.area) };
    }
}

/// The path with AMX tiles and activations of 8 bits: the sums of `bytes`, since those of integers
/// are exact.
pub(super) enum ByteTiles {}

impl MultiplicationPath for ByteTiles {
    type Reader = Records;

    const UNFINISHED_LEN: usize = PACK_ROWS * TASK_COLS;

    fn fits(variant: Variant, shape: Shape) -> bool {
        variant == Variant::Amx
            && shape.rows >= INTEGER_TILES_ROWS
            && shape.activations == ActivationFormat::Int8
    }

    fn layout(Shape { rows, k, format, .. }: Shape) -> PackedLayout {
        let tiles = RowTiles::whole(rows, TILE, amx::task_cols(rows), BLOCK_UNITS);
        bytes::packed_layout(tiles, k, grouped(format))
    }

    unsafe fn pack(task: &Pack<bf16>) {
        let offset = task.group.map_or(0, |(_, bits)| weights::offset(bits));
        // SAFETY: the caller's promise.
        unsafe { bytes::pack_for_tiles(task, offset) };
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn multiply(task: &Sums<Records>) {
        // SAFETY: the caller's promise.
        unsafe { tiles::sums_of_bytes(bytes::in_groups_of_x(task.reader), &task.area) };
    }
}

pub(super) fn grouped(format: WeightFormat) -> Grouped {
    match format {
        WeightFormat::Grouped(format) => format,
        WeightFormat::Plain => unreachable!("plain weights are no integers"),
    }
}

fn packed_layout(tiles: RowTiles, k: usize, format: Grouped) -> PackedLayout {
    let groups = format.groups(k);
    PackedLayout { tiles, units: units_of(groups * format.group), sums: FACTORS * groups }
}

/// Returns the first row of a task.
fn first_row(area: &TaskOperands) -> usize {
    area.tiles.start(area.row_tiles.start)
}
