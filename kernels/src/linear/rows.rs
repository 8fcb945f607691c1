//! The rows of a pass in tiles.

/// Rows of a pass in tiles: of nearly equal height, or whole ones and what is left.
#[derive(Debug, Clone, Copy)]
pub struct RowTiles {
    pub(super) rows: usize,
    pub(super) count: usize,
    /// Rows of a whole tile; `None` where all are of nearly equal height.
    whole: Option<usize>,
    /// Columns of a task at most.
    pub(super) task_cols: usize,
    /// Units of a block of packed x.
    pub(super) block: usize,
}

impl RowTiles {
    /// As few tiles of at most `highest` rows as possible, of nearly equal height.
    pub(super) fn even(rows: usize, highest: usize, task_cols: usize, block: usize) -> RowTiles {
        RowTiles { rows, count: rows.div_ceil(highest), whole: None, task_cols, block }
    }

    /// Tiles of `height` rows, and what is left.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) fn whole(rows: usize, height: usize, task_cols: usize, block: usize) -> RowTiles {
        RowTiles { rows, count: rows.div_ceil(height), whole: Some(height), task_cols, block }
    }

    /// Rows of a tile.
    #[inline(always)]
    pub(super) fn height(self, tile: usize) -> usize {
        self.start(tile + 1) - self.start(tile)
    }

    /// First row of a tile, or of the one after it.
    #[inline(always)]
    pub(super) fn start(self, tile: usize) -> usize {
        match self.whole {
            Some(height) => self.rows.min(tile * height),
            None => tile * self.rows / self.count,
        }
    }

    /// Dwords of packed x before those of a block of `units` units and of the tile whose first row
    /// this is.
    #[inline(always)]
    pub(super) fn packed_before(self, units: usize, block: usize, first_row: usize) -> usize {
        let first = block * self.block;
        first * self.rows + first_row * self.block.min(units - first)
    }
}
