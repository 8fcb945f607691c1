//! The tile instructions for plain weights: up to two tiles of weight rows by two of x, entirely
//! within one `asm!` block.
//!
//! Weights are the row operand: a tile is up to 16 weight rows by 32 inputs, directly from the
//! checkpoint's row-major memory. Activations are the column operand: pairs of inputs by rows, as
//! packed by `pack`. Sums are produced as `[weight row][x row]`.
//!
//! The order of a sum is that of the instruction within 32 inputs (even and odd inputs separately,
//! each in order, then both added to the sum), and steps of 32 inputs in order. Rows and columns of
//! tiles do not interact, so neither the batch nor neighbours affect a sum.

use std::arch::asm;
use std::mem::offset_of;

use crate::amx::tiles::{Config, TILE, Tiles};

/// Bytes of packed x that a step prefetches if it prefetches the weights of another call.
pub(super) const PREFETCH_X_BYTES: usize = 256;

/// Number of weight rows of which a step prefetches a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefetchRows {
    /// All rows of both tiles, for a step that follows soon, into the first-level cache.
    All,
    /// Half of the rows, for another call, into the second-level cache, as with the fractions
    /// below.
    Half,
    Quarter,
    Eighth,
}

impl PrefetchRows {
    /// Returns the number of rows for `calls` calls that together prefetch all rows of the calls
    /// after them; `None` if each call prefetches its own rows.
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

/// A call of [`plain`]: up to two tiles of weight rows by up to two tiles of x rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlainCall {
    /// First weight row, at the first input of the call. Rows are `weight_stride` bytes apart.
    pub weight: *const u8,
    pub weight_stride: usize,
    /// Rows in each tile of weight rows. The second may be 0; it starts 16 rows after the first.
    pub weight_rows: [usize; 2],
    /// Packed rows of each tile of x, `[pair of inputs][row]`. `x_rows` are the numbers of rows;
    /// the second may be 0.
    pub x: [*const u8; 2],
    pub x_rows: [usize; 2],
    /// If true, tiles of x are always whole, whatever memory follows its rows. All calls of a task
    /// then share one configuration, and sums of rows that do not exist are ignored.
    pub whole: bool,
    /// Bytes from a block of packed rows to the next.
    pub x_block: usize,
    /// Number of blocks, with `steps` steps per block and `pairs` pairs of inputs per step. Only a
    /// call of a single step may have fewer than 16 pairs.
    pub blocks: usize,
    pub steps: usize,
    pub pairs: usize,
    /// Tiles of sums, `[tile of x][tile of weight rows][16][16]`.
    pub sums: *mut f32,
    /// If true, sums start at zero instead of being read.
    pub is_first: bool,
    /// Number of rows to prefetch from `prefetch_at` on, `weight_stride` bytes apart; each step
    /// prefetches the next line of each.
    pub prefetch_rows: PrefetchRows,
    pub prefetch_at: *const u8,
    /// Additional packed x to prefetch, `PREFETCH_X_BYTES` further at each step. Not used with
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

/// Rows and pairs of the tiles of a call; 0 for a tile that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlainShape {
    weight_rows: [usize; 2],
    x_rows: [usize; 2],
    pairs: usize,
}

impl PlainShape {
    /// Returns true if the tiles of a call of this shape are configured by `other`.
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

/// AMX tiles for [`plain`], held by this thread until dropped. They are reconfigured only if the
/// shape of a call differs from that of the call before.
#[derive(Debug)]
pub(super) struct PlainTiles {
    tiles: Tiles,
    shape: Option<PlainShape>,
}

impl PlainTiles {
    pub(super) fn new() -> Self {
        PlainTiles { tiles: Tiles::new(), shape: None }
    }

    /// Configures the tiles for `shape` if necessary.
    ///
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

/// Memory operands of the instructions of [`plain`].
#[repr(C)]
#[derive(Debug)]
struct PlainArguments {
    is_first: usize,
    blocks: usize,
    steps: usize,
    /// Bytes from the end of a tile's block of x to its next block.
    x_jump: [usize; 2],
    /// Bytes from the weight rows to the memory to prefetch.
    prefetch_offset: usize,
    prefetch_x_at: *const u8,
}

/// Adds the products of the call to its sums.
///
/// # Safety
/// AMX may be used by this process, or is emulated. There is at least one block of one step. Weight
/// rows are readable for `blocks * steps * pairs * 4` bytes. x has as many pairs of its rows,
/// followed by a whole readable tile if the call is `whole`. The sums cover the tiles.
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

/// Selects the kernel for the number of rows to prefetch.
///
/// # Safety
/// The conditions of [`plain`] hold for `A` tiles of weight rows and `B` of x, all configured.
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

/// Multiplies the tiles. Registers: sums of tile `a` of weight rows and `b` of x in `tmm(a + 2b)`,
/// weight rows in tmm4 and tmm5, x in tmm6 and tmm7.
///
/// # Safety
/// The conditions of [`plain`] hold for `A` tiles of weight rows and `B` of x, all configured. Each
/// step prefetches lines of `PREFETCH_ROWS` rows.
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
            // Start of a block of packed x.
            "3:",
            "mov {steps}, [{arguments} + {steps_each}]",
            // Start of a step of up to 32 inputs.
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
            // Advances x by sixteen pairs.
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
