//! One product in tiles of AMX: sixteen rows of x by a group of some panels, both digits of x.

use std::arch::asm;

use super::shape::PANELS;
use crate::amx::tiles::{Config, TILE};

/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = 1024;

/// Panels of a product: as many as there are tiles for sums.
pub(super) const fn product_panels(four: bool) -> usize {
    if four { 2 * PANELS } else { PANELS }
}

/// The tiles of a task of `rows` rows: sums in tmm0 to tmm3, x in tmm4 and tmm5, weights in tmm6 and tmm7.
/// A part of a tile alone has its own shape; a tile beside others is whole, whatever stands behind its last
/// rows: packed x takes half of its room, so it can be read.
pub(super) fn config(rows: usize, steps: usize) -> Config {
    let rows = rows.min(TILE);
    let (sums, x, weights) = ((rows, TILE), (rows, steps), (steps, TILE));
    Config::new([sums, sums, sums, sums, x, x, weights, weights])
}

/// What [`multiply_four`] and [`multiply_eight`] read and write.
pub(super) struct Operands {
    /// High and low bytes of a tile's rows, `x_stride` bytes apart.
    pub(super) x: [*const u8; 2],
    pub(super) x_stride: usize,
    /// Tiles of weights.
    pub(super) weights: *const u8,
    /// Tiles of sums.
    pub(super) sums: *mut i32,
}

/// Sums of the products of a tile of x and `P` panels of 4 bits: high bytes by 16 times the weights and low bytes by
/// the weights, in one sum.
///
/// # Safety
/// AMX may be used by this process, or is emulated; the operands cover the tiles as [`config`] has them.
pub(super) unsafe fn multiply_four<const P: usize>(operands: Operands) {
    let Operands { x, x_stride, weights, sums } = operands;
    // SAFETY: these instructions exist only in assembly. They read and write what the caller
    // promises, in the shapes configured.
    unsafe {
        asm!(
            "tileloadd tmm4, [{high} + {x_stride}]",
            "tileloadd tmm6, [{weights} + {line}]",
            "tilezero tmm0",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{low} + {x_stride}]",
            "tileloadd tmm7, [{weights} + {line} + 1024]",
            "tdpbsud tmm0, tmm5, tmm7",
            ".if {panels} > 1",
            "tileloadd tmm6, [{weights} + {line} + 2048]",
            "tilezero tmm1",
            "tdpbsud tmm1, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {line} + 3072]",
            "tdpbsud tmm1, tmm5, tmm7",
            ".endif",
            ".if {panels} > 2",
            "tileloadd tmm6, [{weights} + {line} + 4096]",
            "tilezero tmm2",
            "tdpbsud tmm2, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {line} + 5120]",
            "tdpbsud tmm2, tmm5, tmm7",
            ".endif",
            ".if {panels} > 3",
            "tileloadd tmm6, [{weights} + {line} + 6144]",
            "tilezero tmm3",
            "tdpbsud tmm3, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {line} + 7168]",
            "tdpbsud tmm3, tmm5, tmm7",
            ".endif",
            "tilestored [{sums} + {line}], tmm0",
            ".if {panels} > 1",
            "tilestored [{sums} + {line} + 1024], tmm1",
            ".endif",
            ".if {panels} > 2",
            "tilestored [{sums} + {line} + 2048], tmm2",
            ".endif",
            ".if {panels} > 3",
            "tilestored [{sums} + {line} + 3072], tmm3",
            ".endif",
            panels = const P,
            high = in(reg) x[0],
            low = in(reg) x[1],
            x_stride = in(reg) x_stride,
            weights = in(reg) weights,
            sums = in(reg) sums,
            line = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Sums of the products of a tile of x, its high and its low bytes, and `P` panels of 8 bits, two at most.
///
/// # Safety
/// As [`multiply_four`].
pub(super) unsafe fn multiply_eight<const P: usize>(operands: Operands) {
    let Operands { x, x_stride, weights, sums } = operands;
    // SAFETY: as in `multiply_four`.
    unsafe {
        asm!(
            "tileloadd tmm4, [{high} + {x_stride}]",
            "tileloadd tmm6, [{weights} + {line}]",
            "tilezero tmm0",
            "tilezero tmm1",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{low} + {x_stride}]",
            "tdpbsud tmm1, tmm5, tmm6",
            ".if {panels} > 1",
            "tileloadd tmm7, [{weights} + {line} + 2048]",
            "tilezero tmm2",
            "tilezero tmm3",
            "tdpbsud tmm2, tmm4, tmm7",
            "tdpbsud tmm3, tmm5, tmm7",
            ".endif",
            "tilestored [{sums} + {line}], tmm0",
            "tilestored [{sums} + {line} + 1024], tmm1",
            ".if {panels} > 1",
            "tilestored [{sums} + {line} + 2048], tmm2",
            "tilestored [{sums} + {line} + 3072], tmm3",
            ".endif",
            panels = const P,
            high = in(reg) x[0],
            low = in(reg) x[1],
            x_stride = in(reg) x_stride,
            weights = in(reg) weights,
            sums = in(reg) sums,
            line = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
