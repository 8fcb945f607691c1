//! Shapes of the tile registers. Compiled code never touches them: what one `asm!` block leaves in
//! them the next one finds, if no other kernel that uses tiles was called between.

use std::arch::asm;
use std::marker::PhantomData;

/// Rows of a tile, and dwords of its rows.
pub(crate) const TILE: usize = 16;

/// What `ldtilecfg` reads: palette 1, then bytes per row and rows of each tile.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

impl Config {
    /// Tiles by rows and dwords per row. A tile without rows is not used.
    pub(crate) fn new(shapes: [(usize, usize); 8]) -> Self {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for (tile, (rows, dwords)) in shapes.into_iter().enumerate() {
            debug_assert!(rows <= TILE && dwords <= TILE);
            if rows > 0 && dwords > 0 {
                config.rows[tile] = rows as u8;
                config.row_bytes[tile] = 4 * dwords as u16;
            }
        }
        config
    }
}

/// The configuration of this thread's tiles, until dropped.
#[derive(Debug)]
pub(crate) struct Tiles {
    configured: bool,
    _thread_bound: PhantomData<*const ()>,
}

impl Tiles {
    /// Nothing is configured yet.
    pub(crate) fn new() -> Self {
        Tiles { configured: false, _thread_bound: PhantomData }
    }

    /// Gives the tiles other shapes; what they held is lost.
    ///
    /// # Safety
    /// AMX may be used by this process, or is emulated.
    pub(crate) unsafe fn configure(&mut self, config: &Config) {
        // SAFETY: the instruction exists only in assembly; it reads `config`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
        self.configured = true;
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if self.configured {
            // SAFETY: tiles were configured, so the instruction exists. A thread without tiles is
            // switched faster.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }
}
