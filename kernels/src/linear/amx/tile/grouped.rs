//! Grouped weights: a tile of x rows by one of decoded weights, group by group.

use std::arch::asm;

use super::{Config, TILE, TILE_BYTES};

/// Tiles for [`grouped_parts`], on this thread, until dropped.
#[derive(Debug)]
pub(in crate::linear::amx) struct GroupedTiles {
    /// Rows of a lower tile of x; others have one more.
    low: usize,
    _thread_bound: std::marker::PhantomData<*const ()>,
}

impl GroupedTiles {
    /// For tiles of `low` and, if different, `high` rows of x. Sums are in tmm0 or tmm1, x in tmm2 or
    /// tmm3, weights in tmm4.
    ///
    /// # Safety
    /// AMX may be used by this process, or is emulated.
    pub(in crate::linear::amx) unsafe fn new(low: usize, high: usize) -> Self {
        let (low_rows, high_rows, none) = ((low, TILE), (high, TILE), (0, 0));
        let config =
            Config::new([high_rows, low_rows, high_rows, low_rows, (TILE, TILE), none, none, none]);
        // SAFETY: the instruction exists only in assembly; it reads `config`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        GroupedTiles { low, _thread_bound: std::marker::PhantomData }
    }
}

impl Drop for GroupedTiles {
    fn drop(&mut self) {
        // SAFETY: the value exists where the instruction does. A thread without tiles is switched
        // faster.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// A call of [`grouped_parts`]: some rows of x by 16 outputs, summed by group.
#[derive(Debug, Clone, Copy)]
pub(in crate::linear::amx) struct GroupedCall {
    /// x at the first input of the call; rows lie `x_stride` bytes apart.
    pub x: *const u8,
    pub x_stride: usize,
    /// Rows, as many as one of the two heights of the [`GroupedTiles`].
    pub rows: usize,
    /// Decoded weights, `[pair of inputs][16 outputs]`.
    pub weight: *const f32,
    /// Groups, and steps of 32 inputs of each: 1 or 2.
    pub groups: usize,
    pub steps: usize,
    /// `[group][16 rows][16 outputs]`, of which the call's rows are written.
    pub parts: *mut f32,
}

/// The products of x and weights, summed over each group from zero.
///
/// # Safety
/// There is at least one group of one step. Rows of x are readable for `groups * steps * 64` bytes,
/// and weights and parts cover the groups.
pub(in crate::linear::amx) unsafe fn grouped_parts(tiles: &GroupedTiles, call: &GroupedCall) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if call.rows == tiles.low {
            grouped_rows::<true>(call);
        } else {
            grouped_rows::<false>(call);
        }
    }
}

/// # Safety
/// As [`grouped_parts`], for the lower or the higher tiles that are configured.
unsafe fn grouped_rows<const LOW: bool>(call: &GroupedCall) {
    // SAFETY: as in `plain_tiles`; the tiles are configured.
    unsafe {
        asm!(
            "2:",
            ".if {low}",
            "tilezero tmm1",
            ".else",
            "tilezero tmm0",
            ".endif",
            "mov {left}, {steps}",
            "3:",
            "tileloadd tmm4, [{weight} + {line}]",
            ".if {low}",
            "tileloadd tmm3, [{x} + {x_stride}]",
            "tdpbf16ps tmm1, tmm3, tmm4",
            ".else",
            "tileloadd tmm2, [{x} + {x_stride}]",
            "tdpbf16ps tmm0, tmm2, tmm4",
            ".endif",
            "add {x}, 64",
            "add {weight}, {tile}",
            "dec {left}",
            "jnz 3b",
            ".if {low}",
            "tilestored [{parts} + {line}], tmm1",
            ".else",
            "tilestored [{parts} + {line}], tmm0",
            ".endif",
            "add {parts}, {tile}",
            "dec {groups}",
            "jnz 2b",
            low = const LOW as usize,
            tile = const TILE_BYTES,
            x = inout(reg) call.x => _,
            x_stride = in(reg) call.x_stride,
            weight = inout(reg) call.weight => _,
            line = in(reg) 64usize,
            parts = inout(reg) call.parts => _,
            groups = inout(reg) call.groups => _,
            steps = in(reg) call.steps,
            left = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
            options(nostack),
        );
    }
}
