//! The rows of a pass in tiles, and the path that multiplies them.

#[cfg(target_arch = "x86_64")]
use super::sizes::AVX512_BF16_ROWS;
#[cfg(target_arch = "x86_64")]
use crate::amx::tiles::TILE;

/// A path: an algorithm that multiplies a linear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// `direct` and `tiled`.
    Vectors,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Integers,
    /// The same in tiles of AMX.
    #[cfg(target_arch = "x86_64")]
    IntegerTiles,
}

/// Rows of a pass in tiles: of nearly equal height, or, for AMX and `avx512_bf16`, whole ones and
/// what is left.
#[derive(Debug, Clone, Copy)]
pub struct RowTiles {
    pub(super) rows: usize,
    pub(super) count: usize,
    pub(super) path: Path,
    /// Columns of a task at most.
    pub(super) task_cols: usize,
    /// Units of a block of packed x.
    pub(super) block: usize,
}

impl RowTiles {
    /// Rows of a tile.
    #[inline(always)]
    pub(super) fn height(self, tile: usize) -> usize {
        self.start(tile + 1) - self.start(tile)
    }

    /// First row of a tile, or of the one after it.
    #[inline(always)]
    pub(super) fn start(self, tile: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.path, Path::Amx | Path::IntegerTiles) {
            // Packed rows of a whole tile lie on lines of their own.
            return self.rows.min(tile * TILE);
        }
        #[cfg(target_arch = "x86_64")]
        if self.path == Path::Avx512Bf16 {
            return self.rows.min(tile * AVX512_BF16_ROWS);
        }
        tile * self.rows / self.count
    }

    /// Dwords of packed x before those of a block of `units` units and of the tile whose first row
    /// this is.
    #[inline(always)]
    pub(super) fn packed_before(self, units: usize, block: usize, first_row: usize) -> usize {
        let first = block * self.block;
        first * self.rows + first_row * self.block.min(units - first)
    }
}
