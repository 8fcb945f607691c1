//! Few rows: columns one after the other, so that weights are read in the order in which they lie in memory.
//!
//! That is how memory is read fastest, if what follows is asked for. Where x does not stay in the first level of cache
//! meanwhile, several columns side by side (`sums.rs`) read faster: they share what is loaded of it.

use std::mem::MaybeUninit;

use super::PAGE_BYTES;
use super::asks::{Asks, Following, FollowingTwice};
use super::results::{Lanes, add_lanes};
use super::tile::Columns;
use crate::processor::is_zen_5;

/// Blocks of a column at most: their lanes wait for those of the other columns.
const MOST_BLOCKS: usize = 32;
/// Packed x at most, of more than one row; one row alone asks so little of the core that its place does not show.
const X_BYTES: usize = 24 << 10;

/// Whether `rows` rows of packed x, in `blocks` blocks of together `units` units, are read this way.
pub(super) fn fits(rows: usize, blocks: usize, units: usize) -> bool {
    blocks <= MOST_BLOCKS && (rows == 1 || rows * units * size_of::<u32>() <= X_BYTES)
}

/// The sums of `R` rows, the only ones, with `N` columns over all of k. Block `i` of the columns is `columns(i)`, of x
/// `x(i)`.
///
/// # Safety
/// The machine has AVX512-BF16; columns and x exist and [`fits`] holds; `to` has room for `N` results in each
/// row, `RESULT_STRIDE` apart.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn sums<const R: usize, const N: usize>(
    blocks: usize,
    columns: impl Fn(usize) -> Columns,
    x: impl Fn(usize) -> *const f32,
    to: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        // Zen 4 wants more under way than the first level of cache has requests for; Zen 5 loses by it.
        if is_zen_5() {
            sums_asking::<R, N>(blocks, columns, x, to, Following::<PAGE_BYTES>);
        } else {
            sums_asking::<R, N>(blocks, columns, x, to, FollowingTwice::<PAGE_BYTES>);
        }
    }
}

/// # Safety
/// As [`sums`].
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn sums_asking<const R: usize, const N: usize>(
    blocks: usize,
    columns: impl Fn(usize) -> Columns,
    x: impl Fn(usize) -> *const f32,
    to: *mut f32,
    mut asks: impl Asks,
) {
    let mut lanes = [const { MaybeUninit::<Lanes<R>>::uninit() }; MOST_BLOCKS];
    for col in 0..N {
        for (block, lanes) in lanes.iter_mut().enumerate().take(blocks) {
            let mut column = columns(block);
            column.weight = column.weight.wrapping_add(col * column.stride);
            // SAFETY: the caller's promise; a column of the lanes is written before all are read.
            unsafe {
                let sums = column.lanes::<R, 1>(x(block), &mut asks);
                for (row, sums) in sums.iter().enumerate() {
                    (&raw mut (*lanes.as_mut_ptr())[row][col]).write(sums[0]);
                }
            }
        }
    }
    for (block, lanes) in lanes.iter().enumerate().take(blocks) {
        // SAFETY: the caller's promise; the `N` columns of these lanes, which alone are read, were written.
        unsafe { add_lanes::<R, N>(&*lanes.as_ptr(), to, block > 0) };
    }
}
