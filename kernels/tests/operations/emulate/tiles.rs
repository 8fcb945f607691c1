//! Emulation of the tile instructions on a tile file per thread. A condition that a processor would
//! answer with an exception ends the process with a message.

use std::cell::UnsafeCell;

use super::decode::{Cursor, Operand, VexPrefix};
use super::{Machine, products, refuse};

/// One thread's tiles. A tile is 16 rows of 16 dwords, of which its shape uses a part.
struct Tiles {
    configured: bool,
    config: [u8; 64],
    shapes: [Shape; 8],
    data: [[[u32; 16]; 16]; 8],
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    row_bytes: usize,
}

const NO_SHAPE: Shape = Shape { rows: 0, row_bytes: 0 };
const RELEASED: Tiles =
    Tiles { configured: false, config: [0; 64], shapes: [NO_SHAPE; 8], data: [[[0; 16]; 16]; 8] };

thread_local! {
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(RELEASED) };
}

/// Executes the instruction, or returns `None` if it is not a tile instruction that the kernels
/// use.
pub(super) fn execute(
    machine: &mut Machine<'_>,
    cursor: &mut Cursor,
    prefix: VexPrefix,
) -> Option<()> {
    let opcode = cursor.byte();
    if prefix.map != 2 || prefix.wide || prefix.length != 0 {
        return None;
    }
    if !matches!(opcode, 0x49 | 0x4b | 0x5c | 0x5e) {
        return None;
    }
    let (reg, operand) = cursor.operands(machine, prefix, 1);
    TILES.with(|tiles| {
        // SAFETY: the handler does not interrupt itself (SIGILL is blocked while it runs), and only
        // it accesses this thread's tiles.
        let tiles = unsafe { &mut *tiles.get() };
        let tile = usize::from(reg);
        match (opcode, prefix.mandatory, operand) {
            (0x49, 0, Operand::Memory { .. }) if reg == 0 => {
                let from = operand.address()? as *const [u8; 64];
                // SAFETY: the instruction reads these 64 bytes.
                tiles.configure(unsafe { from.read_unaligned() });
            }
            (0x49, 1, Operand::Memory { .. }) if reg == 0 => {
                let to = operand.address()? as *mut [u8; 64];
                // SAFETY: the instruction writes these 64 bytes.
                unsafe { to.write_unaligned(tiles.config) };
            }
            (0x49, 0, Operand::Register(0)) if reg == 0 => *tiles = RELEASED,
            (0x49, 3, Operand::Register(0)) => {
                tiles.shape(tile);
                tiles.data[tile] = [[0; 16]; 16];
            }
            // Loads, with and without the hint that the data is used once, and the store.
            (0x4b, 1 | 3, Operand::Memory { base, index, has_sib: true }) => {
                // SAFETY: the instruction reads the rows that the shape defines for the tile.
                unsafe { tiles.load(tile, base, index) };
            }
            (0x4b, 2, Operand::Memory { base, index, has_sib: true }) => {
                // SAFETY: the instruction writes the rows that the shape defines for the tile.
                unsafe { tiles.store(tile, base, index) };
            }
            (0x5c, 2, Operand::Register(first)) => {
                let sources = [usize::from(first), usize::from(prefix.second)];
                // SAFETY: `install` refuses machines without AVX-512, and those with it have AVX2
                // and FMA.
                tiles.products(tile, sources, |sums, row, columns| unsafe {
                    products::dot_row(sums, row, columns);
                });
            }
            (0x5e, 2, Operand::Register(first)) => {
                let sources = [usize::from(first), usize::from(prefix.second)];
                tiles.products(tile, sources, products::dot_bytes_row);
            }
            _ => return None,
        }
        Some(())
    })
}

impl Tiles {
    fn configure(&mut self, config: [u8; 64]) {
        *self = RELEASED;
        if config[0] == 0 {
            return;
        }
        if config[0] != 1 || config[1] != 0 || config[2..16].iter().any(|byte| *byte != 0) {
            refuse("ldtilecfg: not palette 1 from row 0 with reserved bytes zero");
        }
        if config[32..48].iter().chain(&config[56..]).any(|byte| *byte != 0) {
            refuse("ldtilecfg: palette 1 has eight tiles");
        }
        for tile in 0..8 {
            let row_bytes = u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]);
            let shape = Shape { rows: config[48 + tile].into(), row_bytes: row_bytes.into() };
            if shape.rows > 16 || shape.row_bytes > 64 || (shape.rows == 0) != (row_bytes == 0) {
                refuse("ldtilecfg: a tile has at most 16 rows of at most 64 bytes");
            }
            self.shapes[tile] = shape;
        }
        self.config = config;
        self.configured = true;
    }

    /// Returns the shape of `tile`, which an instruction names and which must therefore have one.
    fn shape(&self, tile: usize) -> Shape {
        if !self.configured || tile >= 8 || self.shapes[tile].rows == 0 {
            refuse("a tile instruction names a tile that is not configured");
        }
        let shape = self.shapes[tile];
        if !shape.row_bytes.is_multiple_of(4) {
            refuse("a tile instruction needs rows of whole dwords");
        }
        shape
    }

    /// # Safety
    /// The rows of the tile's shape, `stride` apart starting at `base`, are readable; otherwise the
    /// access faults like the instruction.
    unsafe fn load(&mut self, tile: usize, base: u64, stride: u64) {
        let shape = self.shape(tile);
        self.data[tile] = [[0; 16]; 16];
        for (row, to) in self.data[tile].iter_mut().enumerate().take(shape.rows) {
            let from = base.wrapping_add(stride.wrapping_mul(row as u64)) as *const u8;
            // SAFETY: the caller's promise; a row of data has space for 64 bytes.
            unsafe {
                to.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, shape.row_bytes);
            }
        }
    }

    /// # Safety
    /// Same contract as [`Tiles::load`], for writing.
    unsafe fn store(&self, tile: usize, base: u64, stride: u64) {
        let shape = self.shape(tile);
        for (row, from) in self.data[tile].iter().enumerate().take(shape.rows) {
            let to = base.wrapping_add(stride.wrapping_mul(row as u64)) as *mut u8;
            // SAFETY: the caller's promise; a row of data has 64 bytes.
            unsafe { to.copy_from_nonoverlapping(from.as_ptr().cast(), shape.row_bytes) };
        }
    }

    fn products(
        &mut self,
        sums: usize,
        [rows, columns]: [usize; 2],
        dot_row: impl Fn(&mut [u32; 16], &[u32], &[[u32; 16]; 16]),
    ) {
        let shapes = [self.shape(sums), self.shape(rows), self.shape(columns)];
        if sums == rows || sums == columns || rows == columns {
            refuse("a product of tiles: the three must differ");
        }
        if shapes[0].rows != shapes[1].rows
            || shapes[0].row_bytes != shapes[2].row_bytes
            || shapes[1].row_bytes != shapes[2].rows * 4
        {
            refuse("a product of tiles: the shapes of the three do not fit each other");
        }
        let dwords = shapes[2].rows;
        for row in 0..shapes[0].rows {
            let mut result = self.data[sums][row];
            dot_row(&mut result, &self.data[rows][row][..dwords], &self.data[columns]);
            result[shapes[0].row_bytes / 4..].fill(0);
            self.data[sums][row] = result;
        }
    }
}
