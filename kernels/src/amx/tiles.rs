//! Shapes of the tile registers. Compiled code never uses them: values that one `asm!` block leaves
//! in them are available to the next one, if no other kernel that uses tiles was called in between.

use std::arch::asm;
use std::marker::PhantomData;

/// Number of rows of a tile, and dwords of each row.
pub(crate) const TILE: usize = 16;

/// Operand of `ldtilecfg`: palette 1, then bytes per row and rows of each tile.
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
    /// Creates a configuration from the rows and dwords per row of each tile. A tile without rows
    /// is unused.
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

/// The configuration of this thread's tiles, released when dropped.
#[derive(Debug)]
pub(crate) struct Tiles {
    configured: bool,
    _thread_bound: PhantomData<*const ()>,
}

impl Tiles {
    /// Creates an empty configuration.
    pub(crate) fn new() -> Self {
        Tiles { configured: false, _thread_bound: PhantomData }
    }

    /// Changes the shapes of the tiles; their contents are lost.
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
            // SAFETY: tiles were configured, so the instruction exists. Threads without tile state
            // are switched faster.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }
}
