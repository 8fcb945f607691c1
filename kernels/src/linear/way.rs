//! Which way a linear takes through its weights, and how its rows are cut for it.

use model::compressed::Grouped;

use super::rows::{RowTiles, Way};
#[cfg(target_arch = "x86_64")]
use super::sizes::DOTS_ROWS;
use super::sizes::{BLOCK_UNITS, VECTOR_COLS};
#[cfg(target_arch = "x86_64")]
use super::{amx, dots, integers, quarters};
use crate::number::Number;
use crate::variant::Variant;

/// The weight of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) enum Weight<T> {
    Plain(*const T),
    Grouped(Grouped, *const u8),
}

fn way_of<T: Number>(variant: Variant, rows: usize, weight: Weight<T>) -> Way {
    #[cfg(target_arch = "x86_64")]
    match weight {
        Weight::Plain(_) if quarters::fits::<T>(variant) => return Way::Quarters,
        Weight::Plain(_) if dots::fits::<T>(variant) => return Way::Dots,
        Weight::Plain(_) if variant == Variant::Amx && !T::IS_F32 => return Way::Amx,
        Weight::Grouped(..) if integers::fits::<T>(variant) => {
            let tiles = integers::fits_tiles(variant, rows);
            return if tiles { Way::IntegerTiles } else { Way::Integers };
        }
        _ => {}
    }
    let _ = (variant, rows, weight);
    Way::Vectors
}

/// The tiles of a pass of `rows` rows of `k` inputs.
pub(super) fn tiles<T: Number>(
    variant: Variant,
    (rows, k): (usize, usize),
    weight: Weight<T>,
) -> RowTiles {
    let way = way_of(variant, rows, weight);
    let (highest, task_cols, block) = match way {
        Way::Vectors => (variant.tile_rows(), VECTOR_COLS, BLOCK_UNITS),
        #[cfg(target_arch = "x86_64")]
        Way::Quarters => {
            (quarters::tile_rows(rows), quarters::task_cols(rows), quarters::block(rows))
        }
        #[cfg(target_arch = "x86_64")]
        Way::Dots => (DOTS_ROWS, VECTOR_COLS, dots::block(k)),
        #[cfg(target_arch = "x86_64")]
        Way::Integers => {
            let bits = match weight {
                Weight::Grouped(form, _) => form.bits,
                Weight::Plain(_) => unreachable!("plain weights are no integers"),
            };
            (integers::tile_rows(bits), VECTOR_COLS, integers::BLOCK)
        }
        #[cfg(target_arch = "x86_64")]
        Way::Amx | Way::IntegerTiles => (amx::TILE_ROWS, amx::task_cols(rows), BLOCK_UNITS),
    };
    RowTiles { rows, count: rows.div_ceil(highest), way, task_cols, block }
}
