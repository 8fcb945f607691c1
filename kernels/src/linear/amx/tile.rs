//! The tile instructions of plain weights: up to two tiles of weight rows by two of x, whole in one
//! `asm!` block.
//!
//! Weights are the row operand: a tile is up to 16 weight rows by 32 inputs, straight from the
//! checkpoint's row-major memory. Activations are the column operand, pairs of inputs by rows as
//! `pack` leaves them. Sums come out as `[weight row][x row]`.
//!
//! The order of a sum is the instruction's within 32 inputs (even and odd ones apart, each in
//! order, then both added to the sum), and steps of 32 inputs in order. Rows and columns of tiles
//! do not meet, so neither batch nor neighbours enter.

use std::arch::asm;
use std::mem::offset_of;

use crate::amx::tiles::{Config, TILE, Tiles};

/// Bytes of packed x that a step prefetches, where it prefetches another call's weights.
pub(super) const PREFETCH_X_BYTES: usize = 256;

/// Of how many weight rows a step prefetches a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefetchRows {
    /// All of both tiles, for a step that comes soon, into the first level of cache.
    All,
    /// A half of them to an eighth, for another call, into the second level.
    Half,
    Quarter,
    Eighth,
}

impl PrefetchRows {
    /// Where `calls` calls prefetch all rows of those after them, or each its own.
    pub(super) fn of_rows(calls: Option<usize>) -> Self {
        match calls {
            None | Some(0 | 1) => PrefetchRows::All,
            Some(2) => PrefetchRows::Half,
            Some(3 | 4) => PrefetchRows::Quarter,
            Some(_) => PrefetchRows::Eighth,
        }
    }

    pub(super) const fn rows(self) -> usize {
        match self {
            PrefetchRows::All => 2 * TILE,
            PrefetchRows::Half => TILE,
            PrefetchRows::Quarter => TILE / 2,
            PrefetchRows::Eighth => TILE / 4,
        }
    }
}

/// A call of [`plain`]: up to two tiles of weight rows by up to two of x rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlainCall {
    /// The first weight row, at the first input of the call; rows lie `weight_stride` bytes apart.
    pub weight: *const u8,
    pub weight_stride: usize,
    /// Rows of each tile of weight rows. The second may be 0; it starts 16 rows after the first.
    pub weight_rows: [usize; 2],
    /// Packed rows of each tile of x, `[pair of inputs][row]`, and their number; the second may be
    /// 0.
    pub x: [*const u8; 2],
    pub x_rows: [usize; 2],
    /// Work with whole tiles of x, whatever stands behind its rows: then all calls of a task have
    /// one configuration, and sums of rows that do not exist are of no use.
    pub whole: bool,
    /// Bytes from a block of packed rows to the next.
    pub x_block: usize,
    /// Blocks, steps of each block, pairs of inputs of each step. Steps of fewer than 16 pairs come
    /// alone.
    pub blocks: usize,
    pub steps: usize,
    pub pairs: usize,
    /// Tiles of sums, `[tile of x][tile of weight rows][16][16]`.
    pub sums: *mut f32,
    /// Sums start at zero instead of being read.
    pub is_first: bool,
    /// What to prefetch: rows `weight_stride` bytes apart, a line of each further at each step.
    pub prefetch_rows: PrefetchRows,
    pub prefetch_at: *const u8,
    /// Packed x to prefetch besides, `PREFETCH_X_BYTES` further at each step; not with
    /// [`PrefetchRows::All`].
    pub prefetch_x_at: *const u8,
}

impl PlainCall {
    fn shape(&self) -> PlainShape {
        let of_x = |rows: usize| if self.whole && rows > 0 { TILE } else { rows };
        PlainShape {
            weight_rows: self.weight_rows,
            x_rows: self.x_rows.map(of_x),
            pairs: self.pairs,
        }
    }
}

/// Rows of the tiles of a call; 0 where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlainShape {
    weight_rows: [usize; 2],
    x_rows: [usize; 2],
    pairs: usize,
}

impl PlainShape {
    /// Whether a call of this shape finds its tiles where those of `other` are.
    fn is_within(self, other: PlainShape) -> bool {
        let fits = |mine: [usize; 2], theirs: [usize; 2]| {
            mine[0] == theirs[0] && (mine[1] == 0 || mine[1] == theirs[1])
        };
        fits(self.weight_rows, other.weight_rows)
            && fits(self.x_rows, other.x_rows)
            && self.pairs == other.pairs
    }

    fn config(self) -> Config {
        let ([a0, a1], [b0, b1], pairs) = (self.weight_rows, self.x_rows, self.pairs);
        let sums = [(a0, b0), (a1, b0), (a0, b1), (a1, b1)];
        let [s0, s1, s2, s3] = sums;
        Config::new([s0, s1, s2, s3, (a0, pairs), (a1, pairs), (pairs, b0), (pairs, b1)])
    }
}

/// Tiles for [`plain`], on this thread, until dropped. They are configured anew only where a call's
/// shape differs from the one before.
#[derive(Debug)]
pub(super) struct PlainTiles {
    tiles: Tiles,
    shape: Option<PlainShape>,
}

impl PlainTiles {
    pub(super) fn new() -> Self {
        PlainTiles { tiles: Tiles::new(), shape: None }
    }

    /// # Safety
    /// AMX may be used by this process, or is emulated.
    unsafe fn configure(&mut self, shape: PlainShape) {
        if self.shape.is_none_or(|configured| !shape.is_within(configured)) {
            // SAFETY: the caller's promise.
            unsafe { self.tiles.configure(&shape.config()) };
            self.shape = Some(shape);
        }
    }
}

/// What the instructions of [`plain`] read besides registers.
#[repr(C)]
#[derive(Debug)]
struct PlainArguments {
    is_first: usize,
    blocks: usize,
    steps: usize,
    /// From the end of a tile's block of x to its next block.
    x_jump: [usize; 2],
    /// From the weight rows to what is prefetched.
    prefetch_offset: usize,
    prefetch_x_at: *const u8,
}

/// Adds the products of the call to its sums.
///
/// # Safety
/// AMX may be used by this process, or is emulated. There is at least one block of one step. Weight
/// rows are readable for `blocks * steps * pairs * 4` bytes, x has as many pairs of its rows, with
/// a whole tile readable behind the last where the call is `whole`, and the sums cover the tiles.
pub(super) unsafe fn plain(tiles: &mut PlainTiles, call: &PlainCall) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        tiles.configure(call.shape());
        match (call.weight_rows[1] > 0, call.x_rows[1] > 0) {
            (true, true) => plain_prefetching::<2, 2>(call),
            (true, false) => plain_prefetching::<2, 1>(call),
            (false, true) => plain_prefetching::<1, 2>(call),
            (false, false) => plain_prefetching::<1, 1>(call),
        }
    }
}

/// # Safety
/// As [`plain`], with `A` tiles of weight rows and `B` of x, all configured.
unsafe fn plain_prefetching<const A: usize, const B: usize>(call: &PlainCall) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        match call.prefetch_rows {
            PrefetchRows::All => plain_tiles::<A, B, { PrefetchRows::All.rows() }>(call),
            PrefetchRows::Half => plain_tiles::<A, B, { PrefetchRows::Half.rows() }>(call),
            PrefetchRows::Quarter => plain_tiles::<A, B, { PrefetchRows::Quarter.rows() }>(call),
            PrefetchRows::Eighth => plain_tiles::<A, B, { PrefetchRows::Eighth.rows() }>(call),
        }
    }
}

/// Registers: sums of tile `a` of weight rows and `b` of x in `tmm(a + 2b)`, weight rows in tmm4
/// and tmm5, x in tmm6 and tmm7.
///
/// # Safety
/// As [`plain`], with `A` tiles of weight rows and `B` of x, all configured, prefetching lines of
/// `PREFETCH_ROWS` rows a step.
unsafe fn plain_tiles<const A: usize, const B: usize, const PREFETCH_ROWS: usize>(
    call: &PlainCall,
) {
    let [b0, b1] = call.x_rows;
    let mut arguments = PlainArguments {
        is_first: usize::from(call.is_first),
        blocks: call.blocks,
        steps: call.steps,
        x_jump: call.x_rows.map(|rows| call.x_block.wrapping_sub(call.steps * TILE * 4 * rows)),
        prefetch_offset: call.prefetch_at.addr().wrapping_sub(call.weight.addr()),
        prefetch_x_at: call.prefetch_x_at,
    };
    // SAFETY: these instructions exist only in assembly. They read and write what the caller
    // promises, in the shapes configured, and `arguments`; prefetches may point anywhere.
    unsafe {
        asm!(
            "cmp qword ptr [{arguments} + {is_first}], 0",
            "je 2f",
            "tilezero tmm0",
            ".if {a} > 1",
            "tilezero tmm1",
            ".endif",
            ".if {b} > 1",
            "tilezero tmm2",
            ".endif",
            ".if {a} + {b} > 3",
            "tilezero tmm3",
            ".endif",
            "jmp 3f",
            "2:",
            "tileloadd tmm0, [{sums} + {line}]",
            ".if {a} > 1",
            "tileloadd tmm1, [{sums} + {line} + 1024]",
            ".endif",
            ".if {b} > 1",
            "tileloadd tmm2, [{sums} + {line} + 2048]",
            ".endif",
            ".if {a} + {b} > 3",
            "tileloadd tmm3, [{sums} + {line} + 3072]",
            ".endif",
            // A block of packed x.
            "3:",
            "mov {steps}, [{arguments} + {steps_each}]",
            // A step of up to 32 inputs.
            "4:",
            "tileloadd tmm6, [{x0} + {x0_stride}]",
            "tileloadd tmm4, [{w0} + {w_stride}]",
            "mov {prefetch_to}, [{arguments} + {prefetch_offset}]",
            "add {prefetch_to}, {w0}",
            ".rept {prefetch_rows}",
            ".if {prefetch_rows} > 16",
            "prefetcht0 [{prefetch_to}]",
            ".else",
            "prefetcht1 [{prefetch_to}]",
            ".endif",
            "add {prefetch_to}, {w_stride}",
            ".endr",
            ".if {prefetch_rows} <= 16",
            "mov {prefetch_to}, [{arguments} + {prefetch_x}]",
            "prefetcht1 [{prefetch_to}]",
            "prefetcht1 [{prefetch_to} + 64]",
            "prefetcht1 [{prefetch_to} + 128]",
            "prefetcht1 [{prefetch_to} + 192]",
            "add qword ptr [{arguments} + {prefetch_x}], {prefetch_x_bytes}",
            ".endif",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ".if {a} > 1",
            "tileloadd tmm5, [{w1} + {w_stride}]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            ".endif",
            ".if {b} > 1",
            "tileloadd tmm7, [{x1} + {x1_stride}]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            ".endif",
            ".if {a} + {b} > 3",
            "tdpbf16ps tmm3, tmm5, tmm7",
            ".endif",
            "add {w0}, 64",
            "add {w1}, 64",
            // Sixteen pairs further.
            "lea {x0}, [{x0} + 8*{x0_stride}]",
            "lea {x0}, [{x0} + 8*{x0_stride}]",
            "lea {x1}, [{x1} + 8*{x1_stride}]",
            "lea {x1}, [{x1} + 8*{x1_stride}]",
            "dec {steps}",
            "jnz 4b",
            "add {x0}, [{arguments} + {x0_jump}]",
            "add {x1}, [{arguments} + {x1_jump}]",
            "dec qword ptr [{arguments} + {blocks}]",
            "jnz 3b",
            "tilestored [{sums} + {line}], tmm0",
            ".if {a} > 1",
            "tilestored [{sums} + {line} + 1024], tmm1",
            ".endif",
            ".if {b} > 1",
            "tilestored [{sums} + {line} + 2048], tmm2",
            ".endif",
            ".if {a} + {b} > 3",
            "tilestored [{sums} + {line} + 3072], tmm3",
            ".endif",
            a = const A,
            b = const B,
            prefetch_rows = const PREFETCH_ROWS,
            prefetch_offset = const offset_of!(PlainArguments, prefetch_offset),
            prefetch_x = const offset_of!(PlainArguments, prefetch_x_at),
            prefetch_x_bytes = const PREFETCH_X_BYTES,
            is_first = const offset_of!(PlainArguments, is_first),
            steps_each = const offset_of!(PlainArguments, steps),
            blocks = const offset_of!(PlainArguments, blocks),
            x0_jump = const offset_of!(PlainArguments, x_jump),
            x1_jump = const offset_of!(PlainArguments, x_jump) + 8,
            arguments = in(reg) &mut arguments,
            w0 = inout(reg) call.weight => _,
            w1 = inout(reg) call.weight.wrapping_add(TILE * call.weight_stride) => _,
            w_stride = in(reg) call.weight_stride,
            x0 = inout(reg) call.x[0] => _,
            x1 = inout(reg) call.x[1] => _,
            x0_stride = in(reg) 4 * b0,
            x1_stride = in(reg) 4 * b1,
            line = in(reg) 64usize,
            sums = in(reg) call.sums,
            steps = out(reg) _,
            prefetch_to = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
