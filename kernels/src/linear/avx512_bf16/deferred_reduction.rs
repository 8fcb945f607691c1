//! Deferred reduction: the lanes of a tile are added while the next tile multiplies. If they were
//! added immediately, the additions would fill the processor's schedulers while they wait for the
//! tile's last products.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are clearer, and surer to stay in registers, by index"
)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::prefetch::Prefetch;
use super::results::Lanes;
use crate::linear::sizes::{AVX512_BF16_ROWS, RESULT_STRIDE};
use crate::simd::Simd;

/// Columns of a tile whose reduction is deferred. Such a tile has `AVX512_BF16_ROWS` rows.
pub(super) const COLS: usize = 6;
/// Columns that are added four at a time, for each row. The others are added two at a time, for two
/// rows.
const FOURS: usize = 4;
/// Groups of four vectors that are reduced to one: the four columns of each row, then the others.
const GROUPS: usize = AVX512_BF16_ROWS + AVX512_BF16_ROWS / 2;
/// Steps of the next tile until the reduction is complete: two groups in each, then the results.
const STEPS: usize = GROUPS / 2 + 1;

/// The vectors of a tile, group by group, and the vector to which each group is reduced.
#[repr(C, align(64))]
pub(super) struct DeferredLanes {
    vectors: [MaybeUninit<__m512>; 4 * GROUPS],
    groups: [MaybeUninit<__m512>; GROUPS],
}

impl DeferredLanes {
    pub(super) const fn new() -> Self {
        DeferredLanes {
            vectors: [const { MaybeUninit::uninit() }; 4 * GROUPS],
            groups: [const { MaybeUninit::uninit() }; GROUPS],
        }
    }
}

/// The reduction of the previous tile, and its progress.
pub(super) struct DeferredReduction<'a> {
    lanes: &'a mut DeferredLanes,
    /// Number of completed steps out of [`STEPS`].
    done: usize,
    to: *mut f32,
    adds: bool,
}

/// Computes the sums across the quarters of all groups like `lanes::add_to_quarters`, each added to
/// the current contents of register 30.
macro_rules! finish {
    ($from:ident, $to:ident,
     before_fours: [$($fours:literal),*],
     before_last_twos: [$($last:literal),*],
     before_twos: [$($twos:literal),*]) => {
        asm!(
            "vmovaps zmm29, [{from}]",
            "vshuff64x2 zmm30, zmm29, [{from} + 64], 0xe4",
            "vshuff64x2 zmm29, zmm29, [{from} + 64], 0x4e",
            "vaddps zmm30, zmm30, zmm29",
            "vmovaps zmm29, [{from} + 128]",
            "vshuff64x2 zmm31, zmm29, [{from} + 192], 0xe4",
            "vshuff64x2 zmm29, zmm29, [{from} + 192], 0x4e",
            "vaddps zmm31, zmm31, zmm29",
            "vshuff64x2 zmm29, zmm30, zmm31, 0x88",
            "vshuff64x2 zmm30, zmm30, zmm31, 0xdd",
            "vaddps zmm29, zmm29, zmm30",
            $($fours,)*
            "vaddps zmm29, zmm29, zmm30",
            "vmovups [{to}], xmm29",
            "vextractf32x4 [{to} + {stride}], zmm29, 1",
            "vextractf32x4 [{to} + 2 * {stride}], zmm29, 2",
            "vextractf32x4 [{to} + 3 * {stride}], zmm29, 3",
            "vmovaps zmm29, [{from} + 256]",
            "vshuff64x2 zmm30, zmm29, [{from} + 320], 0xe4",
            "vshuff64x2 zmm29, zmm29, [{from} + 320], 0x4e",
            "vaddps zmm30, zmm30, zmm29",
            "vshuff64x2 zmm29, zmm30, zmm30, 0x88",
            "vshuff64x2 zmm30, zmm30, zmm30, 0xdd",
            "vaddps zmm29, zmm29, zmm30",
            "vextractf32x4 xmm31, zmm29, 1",
            $($last,)*
            "vaddps xmm31, xmm31, xmm30",
            "vmovlps [{to} + 16 + 2 * {stride}], xmm31",
            "vmovhps [{to} + 16 + 3 * {stride}], xmm31",
            $($twos,)*
            "vaddps xmm29, xmm29, xmm30",
            "vmovlps [{to} + 16], xmm29",
            "vmovhps [{to} + 16 + {stride}], xmm29",
            from = in(reg) $from,
            to = in(reg) $to,
            stride = const RESULT_STRIDE * size_of::<f32>(),
            out("zmm29") _,
            out("zmm30") _,
            out("zmm31") _,
            options(nostack),
        )
    };
}

impl<'a> DeferredReduction<'a> {
    /// Creates a reduction without a deferred tile. Lanes are added to the results if `adds` is
    /// true; otherwise they set them.
    #[inline(always)]
    pub(super) fn new(lanes: &'a mut DeferredLanes, adds: bool) -> Self {
        DeferredReduction { lanes, done: STEPS, to: std::ptr::null_mut(), adds }
    }

    /// Finishes the previous tile, then defers the reduction of a tile whose results are at `to`.
    ///
    /// # Safety
    /// The machine has AVX-512. Until [`DeferredReduction::finish`], `to` has space for [`COLS`]
    /// results in each of `AVX512_BF16_ROWS` rows, `RESULT_STRIDE` apart.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn defer(&mut self, lanes: &Lanes<AVX512_BF16_ROWS>, to: *mut f32) {
        self.finish();
        for row in 0..AVX512_BF16_ROWS {
            for col in 0..FOURS {
                self.lanes.vectors[4 * row + col].write(lanes[row][col]);
            }
            for col in FOURS..COLS {
                let at = 4 * AVX512_BF16_ROWS + 2 * row + col - FOURS;
                self.lanes.vectors[at].write(lanes[row][col]);
            }
        }
        (self.done, self.to) = (0, to);
    }

    /// Finishes the deferred reduction.
    #[inline(always)]
    pub(super) fn finish(&mut self) {
        while self.done < STEPS {
            self.advance();
        }
    }

    /// Performs a step of the deferred reduction.
    #[inline(always)]
    fn advance(&mut self) {
        // SAFETY: a tile is deferred, so `defer` was called, whose caller promised the machine and
        // the results.
        unsafe {
            if self.done < STEPS - 1 {
                self.add_group(2 * self.done);
                self.add_group(2 * self.done + 1);
            } else if self.adds {
                self.add_to_results();
            } else {
                self.set_results();
            }
        }
        self.done += 1;
    }

    /// Computes the sums within the quarters of a group, like `lanes::add_quarters`. Written in
    /// assembly, like the code below, because a tile leaves only three registers.
    ///
    /// # Safety
    /// The machine has AVX-512, and the group's vectors are initialised.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_group(&mut self, group: usize) {
        let from = self.lanes.vectors[4 * group..4 * group + 4].as_ptr();
        let to = self.lanes.groups[group].as_mut_ptr();
        // SAFETY: four vectors are read and one is written, all of them aligned.
        unsafe {
            asm!(
                "vmovaps zmm29, [{from}]",
                "vshufpd zmm30, zmm29, [{from} + 64], 0xaa",
                "vshufpd zmm29, zmm29, [{from} + 64], 0x55",
                "vaddps zmm30, zmm30, zmm29",
                "vmovaps zmm29, [{from} + 128]",
                "vshufpd zmm31, zmm29, [{from} + 192], 0xaa",
                "vshufpd zmm29, zmm29, [{from} + 192], 0x55",
                "vaddps zmm31, zmm31, zmm29",
                "vshufps zmm29, zmm30, zmm31, 0x88",
                "vshufps zmm30, zmm30, zmm31, 0xdd",
                "vaddps zmm29, zmm29, zmm30",
                "vmovaps [{to}], zmm29",
                from = in(reg) from,
                to = in(reg) to,
                out("zmm29") _,
                out("zmm30") _,
                out("zmm31") _,
                options(nostack),
            );
        }
    }

    /// Adds the groups to the results.
    ///
    /// # Safety
    /// The machine has AVX-512; all groups are initialised, and the results exist.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn add_to_results(&mut self) {
        let (from, to) = (self.lanes.groups.as_ptr(), self.to);
        // SAFETY: the groups are read, aligned; of the results, four and two in each of four rows
        // are added to.
        unsafe {
            finish!(
                from,
                to,
                before_fours: [
                    "vmovups xmm30, [{to}]",
                    "vinsertf32x4 zmm30, zmm30, [{to} + {stride}], 1",
                    "vinsertf32x4 zmm30, zmm30, [{to} + 2 * {stride}], 2",
                    "vinsertf32x4 zmm30, zmm30, [{to} + 3 * {stride}], 3"
                ],
                before_last_twos: [
                    "vmovsd xmm30, [{to} + 16 + 2 * {stride}]",
                    "vmovhps xmm30, xmm30, [{to} + 16 + 3 * {stride}]"
                ],
                before_twos: [
                    "vmovsd xmm30, [{to} + 16]",
                    "vmovhps xmm30, xmm30, [{to} + 16 + {stride}]"
                ]
            );
        }
    }

    /// Sets the results to the groups, by adding these to 0 as `results` does.
    ///
    /// # Safety
    /// The conditions of [`DeferredReduction::add_to_results`] hold.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn set_results(&mut self) {
        let (from, to) = (self.lanes.groups.as_ptr(), self.to);
        // SAFETY: as above, but results are only written.
        unsafe {
            finish!(
                from,
                to,
                before_fours: ["vpxord zmm30, zmm30, zmm30"],
                before_last_twos: ["vpxord zmm30, zmm30, zmm30"],
                before_twos: []
            );
        }
    }
}

/// Prefetches nothing: a step of the reduction takes the place of a prefetch between the lines of a
/// tile.
impl Prefetch for DeferredReduction<'_> {
    #[inline(always)]
    fn step<S: Simd>(&mut self, _: S) {
        if self.done < STEPS {
            self.advance();
        }
    }
}
