//! Products in tiles of AMX: sixteen rows of x by a group of a panel, both digits of x.
//!
//! Tiles of sums are places of a ring. What a place holds is stored when its next product begins,
//! some products later: stored at once, everything behind it would wait for the product.

use std::arch::asm;

use crate::amx::tiles::{Config, TILE};

/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = 1024;
/// Tiles of sums.
const SUM_TILES: usize = 4;

/// Places of the ring: of 8 bits the digits have a tile of sums each.
pub(super) const fn places(four: bool) -> usize {
    if four { SUM_TILES } else { SUM_TILES / 2 }
}

/// The tiles of a task of `rows` rows: sums in tmm0 to tmm3, x in tmm4 and tmm5, weights in tmm6
/// and tmm7. A part of a tile alone has its own shape; a tile beside others is whole, whatever
/// stands behind its last rows: packed x takes half of its room, so it can be read.
pub(super) fn config(rows: usize, steps: usize) -> Config {
    let rows = rows.min(TILE);
    let (sums, x, weights) = ((rows, TILE), (rows, steps), (steps, TILE));
    Config::new([sums, sums, sums, sums, x, x, weights, weights])
}

/// Takes a tile of x, its high and its low digits, rows `stride` bytes apart, for the products that
/// follow.
///
/// # Safety
/// AMX may be used by this process, or is emulated; the rows exist as [`config`] has them.
#[inline]
pub(super) unsafe fn take_x([high, low]: [*const u8; 2], stride: usize) {
    // SAFETY: these instructions exist only in assembly. They read what the caller promises.
    unsafe {
        asm!(
            "tileloadd tmm4, [{high} + {stride}]",
            "tileloadd tmm5, [{low} + {stride}]",
            high = in(reg) high,
            low = in(reg) low,
            stride = in(reg) stride,
            out("tmm4") _, out("tmm5") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// Stores the sums of a place, one tile, or two if not `FOUR`.
///
/// # Safety
/// As [`take_x`]; `sums` has room for the tiles.
#[inline]
pub(super) unsafe fn store<const FOUR: bool, const PLACE: usize>(sums: *mut i32) {
    // SAFETY: as in `take_x`; they write what the caller promises.
    unsafe {
        if FOUR {
            asm!(
                "tilestored [{sums} + {line}], tmm{sum}",
                sum = const PLACE,
                sums = in(reg) sums,
                line = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        } else {
            asm!(
                "tilestored [{sums} + {line}], tmm{high}",
                "tilestored [{sums} + {line} + 1024], tmm{low}",
                high = const 2 * PLACE,
                low = const 2 * PLACE + 1,
                sums = in(reg) sums,
                line = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Begins the product of the tile of x that was taken and the weights of a panel. Of 4 bits high
/// digits go by 16 times the weights and low ones by the weights, in one sum.
///
/// # Safety
/// As [`take_x`]; `weights` are the tiles of a panel and group.
#[inline]
pub(super) unsafe fn begin<const FOUR: bool, const PLACE: usize>(weights: *const u8) {
    // SAFETY: as in `take_x`.
    unsafe {
        if FOUR {
            asm!(
                "tileloadd tmm6, [{weights} + {line}]",
                "tilezero tmm{sum}",
                "tdpbsud tmm{sum}, tmm4, tmm6",
                "tileloadd tmm7, [{weights} + {line} + 1024]",
                "tdpbsud tmm{sum}, tmm5, tmm7",
                sum = const PLACE,
                weights = in(reg) weights,
                line = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        } else {
            asm!(
                "tileloadd tmm6, [{weights} + {line}]",
                "tilezero tmm{high}",
                "tdpbsud tmm{high}, tmm4, tmm6",
                "tilezero tmm{low}",
                "tdpbsud tmm{low}, tmm5, tmm6",
                high = const 2 * PLACE,
                low = const 2 * PLACE + 1,
                weights = in(reg) weights,
                line = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm6") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }
}
