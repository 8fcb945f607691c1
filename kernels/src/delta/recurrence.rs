//! The rows of a sequence in a head whose state is `[keys, columns]`.
//!
//! A block of the state's columns passes through all rows before the next one, so that it stays in
//! L1. A column's sums run over the keys from the first to the last, regardless of its block.
//! Drafts pass through a copy of the block.

use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{MAX_LANES, Simd};
use crate::variant::SimdTask;

/// Number of vectors of columns that are processed together.
const TOGETHER: usize = 4;

/// Number of elements of the copy of a block with `keys` keys.
pub(crate) const fn block_len(keys: usize) -> usize {
    keys * TOGETHER * MAX_LANES
}

/// Some columns of a state.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// The first of the columns, of the first key.
    pub(super) first: *mut f32,
    /// Number of elements from a key to the next.
    pub(super) stride: usize,
}

impl Block {
    /// Returns vector `n` of the columns of a key.
    #[inline(always)]
    pub(super) fn vector<S: Simd>(&self, key: usize, n: usize) -> *mut f32 {
        self.first.wrapping_add(key * self.stride + n * S::LANES)
    }
}

/// The recurrence of a head, which updates each column of the state by itself.
pub trait Recurrence {
    /// Effect of a row on all columns.
    type Step;

    /// Returns a step to be overwritten.
    fn new_step() -> Self::Step;
    /// Returns the state, and the numbers of its keys and columns.
    fn state(&self) -> (*mut f32, [usize; 2]);

    /// Computes the effect of a row.
    ///
    /// # Safety
    /// The row is the sequence's.
    unsafe fn prepare<S: Simd>(&self, s: S, step: &mut Self::Step, row: usize);

    /// Updates `N` vectors of columns starting at `at`, the last of them `width` wide, and writes
    /// their output.
    ///
    /// # Safety
    /// These columns are the head's, and `block` is valid for them; the row is the sequence's.
    unsafe fn step<S: Simd, const N: usize>(
        &self,
        s: S,
        step: &Self::Step,
        block: Block,
        row: usize,
        at: usize,
        width: usize,
    );
}

/// A head over its rows. The code that constructs one guarantees that the rows are the sequence's.
#[derive(Debug)]
pub struct HeadRows<R> {
    /// Accepted drafts of the call before, which come first. Their outputs are overwritten.
    pub(super) accepted: R,
    pub(super) accepted_rows: usize,
    pub(super) recurrence: R,
    pub(super) rows: usize,
    /// Number of rows that the state does not take in, the last ones.
    pub(super) drafts: usize,
    /// The state is replaced by zeros first.
    pub(super) begins: bool,
    /// Space for a copy of a block: `block_len` elements.
    pub(super) copy: *mut f32,
}

impl<R: Recurrence> SimdTask for HeadRows<R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (_, [_, columns]) = self.recurrence.state();
        let mut step = R::new_step();
        let mut at = 0;
        while at < columns {
            // SAFETY: the columns starting at `at`, in the number passed, are the head's.
            unsafe {
                at += match columns - at {
                    left if left >= TOGETHER * S::LANES => {
                        self.follow::<S, TOGETHER>(s, &mut step, at, S::LANES);
                        TOGETHER * S::LANES
                    }
                    left => {
                        let width = left.min(S::LANES);
                        self.follow::<S, 1>(s, &mut step, at, width);
                        width
                    }
                }
            }
        }
    }
}

impl<R: Recurrence> HeadRows<R> {
    /// Processes all rows over `N` vectors of columns starting at `at`, the last of them `width`
    /// wide.
    ///
    /// # Safety
    /// These columns are the head's.
    #[inline(always)]
    unsafe fn follow<S: Simd, const N: usize>(
        &self,
        s: S,
        step: &mut R::Step,
        at: usize,
        width: usize,
    ) {
        let (state, [keys, columns]) = self.recurrence.state();
        let block = Block { first: state.wrapping_add(at), stride: columns };
        // SAFETY: the caller's promise; the copy has space for the columns.
        unsafe {
            if self.begins {
                self.forget_all::<S, N>(s, at, width);
            }
            for row in 0..self.accepted_rows {
                self.accepted.prepare(s, step, row);
                self.accepted.step::<S, N>(s, step, block, row, at, width);
            }
            for row in 0..self.rows - self.drafts {
                self.recurrence.prepare(s, step, row);
                self.recurrence.step::<S, N>(s, step, block, row, at, width);
            }
            if self.drafts == 0 {
                return;
            }
            let copy = Block { first: self.copy, stride: N * S::LANES };
            for key in 0..keys {
                for n in 0..N {
                    let value = load_up_to(s, block.vector::<S>(key, n).cast_const(), width);
                    store_up_to(s, copy.vector::<S>(key, n), value, width);
                }
            }
            for row in self.rows - self.drafts..self.rows {
                self.recurrence.prepare(s, step, row);
                self.recurrence.step::<S, N>(s, step, copy, row, at, width);
            }
        }
    }

    /// # Safety
    /// Same contract as [`HeadRows::follow`].
    #[inline(always)]
    unsafe fn forget_all<S: Simd, const N: usize>(&self, s: S, at: usize, width: usize) {
        let (state, [keys, columns]) = self.recurrence.state();
        for key in 0..keys {
            for n in 0..N {
                let place = key * columns + at + n * S::LANES;
                // SAFETY: the caller's promise.
                unsafe { store_up_to(s, state.add(place), s.zero(), width) };
            }
        }
    }
}
