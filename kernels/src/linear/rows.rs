//! Division of the rows of a pass into tiles.

/// Tiles of a pass's rows: of nearly equal height, or whole tiles and a remainder.
#[derive(Debug, Clone, Copy)]
pub struct RowTiles {
    pub(super) rows: usize,
    pub(super) count: usize,
    /// Rows of a whole tile; `None` if all tiles are of nearly equal height.
    whole: Option<usize>,
    /// Maximum number of columns in a task.
    pub(super) task_cols: usize,
    /// Units in a block of packed x.
    pub(super) block: usize,
}

impl RowTiles {
    /// Returns as few tiles of at most `highest` rows as possible, of nearly equal height.
    pub(super) fn even(rows: usize, highest: usize, task_cols: usize, block: usize) -> RowTiles {
        RowTiles { rows, count: rows.div_ceil(highest), whole: None, task_cols, block }
    }

    /// Returns tiles of `height` rows, and one of the remainder.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) fn whole(rows: usize, height: usize, task_cols: usize, block: usize) -> RowTiles {
        RowTiles { rows, count: rows.div_ceil(height), whole: Some(height), task_cols, block }
    }

    /// Returns the number of rows in a tile.
    #[inline(always)]
    pub(super) fn height(self, tile: usize) -> usize {
        self.start(tile + 1) - self.start(tile)
    }

    /// Returns the first row of a tile, or the end of the last one.
    #[inline(always)]
    pub(super) fn start(self, tile: usize) -> usize {
        match self.whole {
            Some(height) => self.rows.min(tile * height),
            None => tile * self.rows / self.count,
        }
    }

    /// Returns the number of dwords of packed x before block `block` of the tile whose first row is
    /// `first_row`. Each row has `units` units.
    #[inline(always)]
    pub(super) fn packed_before(self, units: usize, block: usize, first_row: usize) -> usize {
        let first = block * self.block;
        first * self.rows + first_row * self.block.min(units - first)
    }
}
