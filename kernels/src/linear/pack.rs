//! Packs activations in the order in which the kernels read them: `[unit][row]` for every block of
//! k and every tile of rows, so that a kernel reads one stream; and, for grouped weights, the sums
//! over groups of k.

use half::bf16;

use super::reader::{PairsBf16, Plain, PlainBf16, PlainF32, WeightReader};
use super::rows::RowTiles;
use super::sizes::BLOCK_UNITS;
use crate::number::Number;
use crate::scratch::SharedPointer;
use crate::simd::Simd;
use crate::variant::SimdTask;
use model::quantized_format::Bits;

/// Source index of each byte of eight inputs, so that the first dword holds the inputs whose 4-bit
/// weights are in the low nibbles of a dword of weights, and the second those whose weights are in
/// the high nibbles.
pub(super) const NIBBLES: [u8; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A reader of plain activations whose inputs are also added up.
trait Packed<S: Simd>: WeightReader<S> {
    /// Returns `sum` plus the inputs in a dword, in order.
    fn add(s: S, sum: S::F, dword: S::D) -> S::F;
}

impl<S: Simd> Packed<S> for PlainF32 {
    #[inline(always)]
    fn add(s: S, sum: S::F, dword: S::D) -> S::F {
        s.add(sum, s.bits(dword))
    }
}

impl<S: Simd> Packed<S> for PlainBf16 {
    #[inline(always)]
    fn add(s: S, sum: S::F, dword: S::D) -> S::F {
        s.add(s.add(sum, s.low_bf16(dword)), s.high_bf16(dword))
    }
}

impl<S: Simd> Packed<S> for PairsBf16 {
    #[inline(always)]
    fn add(s: S, sum: S::F, dword: S::D) -> S::F {
        s.add(s.add(sum, s.low_bf16(dword)), s.high_bf16(dword))
    }
}

/// Packs a range of blocks of k for one tile of rows.
#[derive(Debug, Clone)]
pub struct Pack<T> {
    pub(super) x: *const T,
    pub(super) k: usize,
    /// Units of the weight along k: those of x, or more if the weight is padded.
    pub(super) units: usize,
    pub(super) tiles: RowTiles,
    pub(super) tile: usize,
    pub(super) blocks: std::ops::Range<usize>,
    pub(super) packed: SharedPointer<f32>,
    pub(super) sums: SharedPointer<f32>,
    /// Inputs of a group and the bits of its weights, if weights are grouped.
    pub(super) group: Option<(usize, Bits)>,
}

impl<T: Number> SimdTask for Pack<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = self.x.wrapping_add(self.tiles.start(self.tile) * self.k);
        if self.tiles.rows == 1 {
            self.one_row(s, x);
        } else if T::IS_F32 {
            self.run_as(s, PlainF32(Plain::new(x.cast(), self.rows_left(), self.k)));
        } else {
            self.run_as(s, PlainBf16(Plain::new(x.cast(), self.rows_left(), self.k)));
        }
    }
}

impl Pack<bf16> {
    /// Packs pairs of inputs without converting them.
    #[inline(always)]
    pub(super) fn pairs<S: Simd>(&self, s: S) {
        let x = self.x.wrapping_add(self.tiles.start(self.tile) * self.k);
        self.run_as(s, PairsBf16(Plain::new(x, self.rows_left(), self.k)));
    }
}

impl<T: Number> Pack<T> {
    pub(super) fn rows(&self) -> usize {
        self.tiles.height(self.tile)
    }

    /// Returns the number of rows from this tile on: a vector is read whole if there are enough.
    fn rows_left(&self) -> usize {
        self.tiles.rows - self.tiles.start(self.tile)
    }

    #[inline(always)]
    fn run_as<S: Simd, X: Packed<S>>(&self, s: S, reader: X) {
        let (first_row, rows) = (self.tiles.start(self.tile), self.rows());
        let chunk = X::UNITS * X::DWORDS;
        // A unit is an input whenever weights are grouped, and groups are powers of two.
        let per_group = self.group.map(|(group, _)| group);
        let mut sum = s.zero();
        for block in self.blocks.clone() {
            let first = block * BLOCK_UNITS;
            let units = BLOCK_UNITS.min(self.units - first);
            let to = self.tiles.packed_before(self.units, block, first_row);
            let to = self.packed.pointer().wrapping_add(to);
            for at in (0..units).step_by(chunk) {
                let count = chunk.min(units - at);
                let dwords = if reader.is_full(0) && first + at + chunk <= reader.units() {
                    // SAFETY: a vector's worth of rows exists, and all units of the chunk.
                    unsafe { reader.chunk(s, 0, block, at / chunk) }
                } else if first + at < reader.units() {
                    // SAFETY: the row tile and this unit of it exist.
                    unsafe { reader.edge(s, 0, block, at / chunk) }
                } else {
                    // SAFETY: the zeros can be read as a vector.
                    s.repeat(unsafe { s.load_dwords([0u8; 64].as_ptr()) })
                };
                for (i, &dword) in dwords.as_ref().iter().enumerate().take(X::DWORDS) {
                    for j in 0..X::UNITS {
                        let unit = i * X::UNITS + j;
                        if unit < count {
                            // SAFETY: packed rows have space for `units` units of this tile.
                            unsafe {
                                let to = to.add((at + unit) * rows);
                                store_some(s, to, X::unit(s, dword, j), rows);
                            }
                        }
                    }
                    sum = X::add(s, sum, dword);
                    let done = first + at + (i + 1) * X::UNITS;
                    if let Some(group) = per_group
                        && done & (group - 1) == 0
                        && done <= self.units
                    {
                        let to = (done / group - 1) * self.tiles.rows + first_row;
                        // SAFETY: there is a sum for every group and row.
                        unsafe { store_some(s, self.sums.pointer().wrapping_add(to), sum, rows) };
                        sum = s.zero();
                    }
                }
            }
        }
    }

    /// Packs the only row of a pass, which needs no transposition.
    #[inline(always)]
    fn one_row<S: Simd>(&self, s: S, x: *const T) {
        let first = self.blocks.start * BLOCK_UNITS;
        let end = self.units.min(self.blocks.end * BLOCK_UNITS);
        let to = self.packed.pointer();
        let mut at = first;
        // SAFETY: x has `k` elements, packed rows and sums have space for all units and groups.
        unsafe {
            while at + S::LANES <= end.min(self.k) {
                s.store(to.add(at), T::load(s, x.add(at)));
                at += S::LANES;
            }
            while at < end {
                *to.add(at) = if at < self.k { (*x.add(at)).to_f32() } else { 0.0 };
                at += 1;
            }
            if let Some((group, _)) = self.group {
                let groups = first / group..end / group;
                let sums = self.sums.pointer();
                // Several groups at a time, because one sum is one long chain.
                for some in groups.clone().step_by(8) {
                    let count = 8.min(groups.end - some);
                    let mut chains = [0.0f32; 8];
                    for i in 0..group {
                        for (g, chain) in chains.iter_mut().enumerate().take(count) {
                            *chain += *to.add((some + g) * group + i);
                        }
                    }
                    for (g, chain) in chains.into_iter().enumerate().take(count) {
                        *sums.add(some + g) = chain;
                    }
                }
            }
        }
    }
}

/// Stores the first `count` lanes of `value`.
///
/// # Safety
/// `to` is valid for `count <= LANES` f32.
#[inline(always)]
unsafe fn store_some<S: Simd>(s: S, to: *mut f32, value: S::F, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == S::LANES { s.store(to, value) } else { s.store_partial(to, value, count) }
    }
}
