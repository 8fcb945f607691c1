//! Which path multiplies a linear, and how its rows are cut for it.

use model::compressed::Grouped;

use super::rows::{Path, RowTiles};
#[cfg(target_arch = "x86_64")]
use super::sizes::AVX512_BF16_ROWS;
use super::sizes::{BLOCK_UNITS, VECTOR_COLS};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512, avx512_bf16, integers};
use crate::number::Number;
use crate::variant::Variant;

/// The weight of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) enum Weight<T> {
    Plain(*const T),
    Grouped(Grouped, *const u8),
}

fn path_of<T: Number>(variant: Variant, rows: usize, weight: Weight<T>) -> Path {
    #[cfg(target_arch = "x86_64")]
    match weight {
        Weight::Plain(_) if avx512::fits::<T>(variant) => return Path::Avx512,
        Weight::Plain(_) if avx512_bf16::fits::<T>(variant) => return Path::Avx512Bf16,
        Weight::Plain(_) if variant == Variant::Amx && !T::IS_F32 => return Path::Amx,
        Weight::Grouped(..) if integers::fits::<T>(variant) => {
            let tiles = integers::fits_tiles(variant, rows);
            return if tiles { Path::IntegerTiles } else { Path::Integers };
        }
        _ => {}
    }
    let _ = (variant, rows, weight);
    Path::Vectors
}

/// The tiles of a pass of `rows` rows of `k` inputs.
pub(super) fn tiles<T: Number>(
    variant: Variant,
    (rows, k): (usize, usize),
    weight: Weight<T>,
) -> RowTiles {
    let path = path_of(variant, rows, weight);
    let (highest, task_cols, block) = match path {
        Path::Vectors => (variant.tile_rows(), VECTOR_COLS, BLOCK_UNITS),
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => (avx512::tile_rows(rows), avx512::task_cols(rows), avx512::block(rows)),
        #[cfg(target_arch = "x86_64")]
        Path::Avx512Bf16 => (AVX512_BF16_ROWS, VECTOR_COLS, avx512_bf16::block(k)),
        #[cfg(target_arch = "x86_64")]
        Path::Integers => {
            let bits = match weight {
                Weight::Grouped(format, _) => format.bits,
                Weight::Plain(_) => unreachable!("plain weights are no integers"),
            };
            (integers::tile_rows(bits), VECTOR_COLS, integers::BLOCK)
        }
        #[cfg(target_arch = "x86_64")]
        Path::Amx | Path::IntegerTiles => (amx::TILE_ROWS, amx::task_cols(rows), BLOCK_UNITS),
    };
    RowTiles { rows, count: rows.div_ceil(highest), path, task_cols, block }
}
