//! Products in AMX tiles: sixteen rows of x by a group of a panel, for both digits of x.
//!
//! The tiles of sums form a ring of places. The contents of a place are stored when its next
//! product starts, some products later: if they were stored immediately, all following instructions
//! would wait for the product.

use std::arch::asm;

use crate::amx::tiles::{Config, TILE};

/// Operands of the products of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operands {
    /// Two digits of x, and weights of 4 bits twice: 16 times each, and unchanged.
    TwoDigitsFourBits,
    /// Two digits of x, and weights as bytes; each digit has a tile of sums of its own.
    TwoDigits,
    /// x and weights as bytes.
    Bytes,
}

/// Operands as types.
pub(super) trait TileOperands {
    const OPERANDS: Operands;
    /// True if the products of a group have one tile of sums.
    const ONE_SUM: bool = !matches!(Self::OPERANDS, Operands::TwoDigits);
    /// Number of places of the ring.
    const PLACES: usize = if Self::ONE_SUM { SUM_TILES } else { SUM_TILES / 2 };
}

/// [`Operands::TwoDigitsFourBits`].
pub(super) enum TwoDigitsFourBits {}
/// [`Operands::TwoDigits`].
pub(super) enum TwoDigits {}
/// [`Operands::Bytes`].
pub(super) enum Bytes {}

impl TileOperands for TwoDigitsFourBits {
    const OPERANDS: Operands = Operands::TwoDigitsFourBits;
}

impl TileOperands for TwoDigits {
    const OPERANDS: Operands = Operands::TwoDigits;
}

impl TileOperands for Bytes {
    const OPERANDS: Operands = Operands::Bytes;
}

/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = 1024;
/// Number of tiles of sums.
const SUM_TILES: usize = 4;

/// Returns the tile configuration of a task of `rows` rows: sums in tmm0 to tmm3, x in tmm4 and
/// tmm5, weights in tmm6 and tmm7. If the only tile is partial, it has its own shape; if there are
/// several tiles, each is treated as whole, whatever memory follows its last rows: packed x takes
/// half of its buffer, so that memory can be read.
pub(super) fn config(rows: usize, steps: usize) -> Config {
    let rows = rows.min(TILE);
    let (sums, x, weights) = ((rows, TILE), (rows, steps), (steps, TILE));
    Config::new([sums, sums, sums, sums, x, x, weights, weights])
}

/// Loads a tile of x, its high and its low digits or its bytes, with rows `stride` bytes apart, for
/// the following products.
///
/// # Safety
/// AMX may be used by this process, or is emulated; the rows exist as configured by [`config`].
#[inline]
pub(super) unsafe fn take_x<O: TileOperands>([high, low]: [*const u8; 2], stride: usize) {
    // SAFETY: these instructions exist only in assembly. They read what the caller promises.
    unsafe {
        if const { matches!(O::OPERANDS, Operands::Bytes) } {
            asm!(
                "tileloadd tmm4, [{x} + {stride}]",
                x = in(reg) high,
                stride = in(reg) stride,
                out("tmm4") _,
                options(nostack, readonly, preserves_flags),
            );
        } else {
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
}

/// Stores the sums of a place: one tile, or two.
///
/// # Safety
/// The conditions of [`take_x`] hold; `sums` has space for the tiles.
#[inline]
pub(super) unsafe fn store<O: TileOperands, const PLACE: usize>(sums: *mut i32) {
    // SAFETY: as in `take_x`; they write what the caller promises.
    unsafe {
        if const { O::ONE_SUM } {
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

/// Starts the product of the loaded tile of x and the weights of a panel. With two digits and
/// weights of 4 bits, high digits are multiplied by 16 times the weights and low digits by the
/// weights, in one sum.
///
/// # Safety
/// The conditions of [`take_x`] hold; `weights` are the tiles of a panel and group.
#[inline]
pub(super) unsafe fn begin<O: TileOperands, const PLACE: usize>(weights: *const u8) {
    // SAFETY: as in `take_x`.
    unsafe {
        match const { O::OPERANDS } {
            Operands::TwoDigitsFourBits => asm!(
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
            ),
            Operands::TwoDigits => asm!(
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
            ),
            Operands::Bytes => asm!(
                "tileloadd tmm6, [{weights} + {line}]",
                "tilezero tmm{sum}",
                "tdpbsud tmm{sum}, tmm4, tmm6",
                sum = const PLACE,
                weights = in(reg) weights,
                line = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm6") _,
                options(nostack, readonly, preserves_flags),
            ),
        }
    }
}
