//! Kernel for three or four rows of x times four columns along a block. Each column is a memory
//! stream of its own.
//!
//! It is written in assembly so that each weight is a memory operand of all its products. A
//! compiler would load it into a register first; with fewer instructions the processor looks
//! further ahead in memory.

use std::arch::asm;
use std::arch::x86_64::*;

use super::prefetch::{AtDistance, STEP_LINES};
use super::results::{Lanes, MAX_COLS};
use super::tile::Columns;
use super::{LINE, LINE_UNITS};
use crate::linear::tuning::STREAMS_PREFETCH_BYTES;

pub(super) const STREAMS: usize = 4;

/// Prefetches a line of stream `$n`, and multiplies the current one by rows of x.
macro_rules! products {
    ($n:literal: $($row:literal)*) => {
        concat!(
            "prefetcht0 [{w", $n, "} + {prefetch}]\n",
            $("vdpbf16ps {s", $row, $n, "}, zmm2", $row, ", zmmword ptr [{w", $n, "} + {at}]\n",)*
        )
    };
}

/// Returns the products of `R` rows with four columns along a block, lane by lane.
///
/// # Safety
/// The conditions of [`Columns::lanes`] hold for four columns.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn lanes<const R: usize>(columns: Columns, x: *const f32) -> Lanes<R>
where
    Lanes<R>: Rows,
{
    let mut sums = [[_mm512_setzero_ps(); MAX_COLS]; R];
    let (mut weight, mut to_x) = (columns.weight, x);
    for _ in 0..columns.inputs / (STEP_LINES * LINE) {
        let w = std::array::from_fn(|n| weight.wrapping_add(n * columns.stride).cast());
        // SAFETY: these lines exist in every column and in packed x; the rest is the caller's
        // promise.
        unsafe {
            sums.multiply::<0>(w, to_x);
            sums.multiply::<1>(w, to_x);
            sums.multiply::<2>(w, to_x);
            sums.multiply::<3>(w, to_x);
        }
        weight = weight.wrapping_add(STEP_LINES * LINE);
        to_x = to_x.wrapping_add(STEP_LINES * R * LINE_UNITS);
    }
    let inputs = columns.inputs % (STEP_LINES * LINE);
    let rest = Columns { weight, inputs, ..columns };
    // SAFETY: the caller's promise.
    unsafe {
        rest.add_lanes::<R, STREAMS>(to_x, &mut AtDistance::<STREAMS_PREFETCH_BYTES>, &mut sums)
    };
    sums
}

/// Sums of some rows with [`STREAMS`] columns.
pub(super) trait Rows {
    /// Adds the products of line `L` of a step, whose columns are at `w` and whose x is at `x`.
    ///
    /// # Safety
    /// The machine has AVX512-BF16; the line exists in all columns and in packed x.
    unsafe fn multiply<const L: usize>(&mut self, w: [*const u8; STREAMS], x: *const f32);
}

impl Rows for Lanes<3> {
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply<const L: usize>(&mut self, w: [*const u8; STREAMS], x: *const f32) {
        let [r0, r1, r2] = self;
        // SAFETY: the caller's promise; nothing is written, and prefetching memory that does not
        // exist does nothing.
        unsafe {
            asm!(
                "vmovups zmm20, zmmword ptr [{x} + {x_at}]",
                "vmovups zmm21, zmmword ptr [{x} + {x_at} + 64]",
                "vmovups zmm22, zmmword ptr [{x} + {x_at} + 128]",
                products!(0: 0 1 2),
                products!(1: 0 1 2),
                products!(2: 0 1 2),
                products!(3: 0 1 2),
                x = in(reg) x,
                w0 = in(reg) w[0], w1 = in(reg) w[1], w2 = in(reg) w[2], w3 = in(reg) w[3],
                out("zmm20") _, out("zmm21") _, out("zmm22") _,
                s00 = inout(zmm_reg) r0[0], s01 = inout(zmm_reg) r0[1],
                s02 = inout(zmm_reg) r0[2], s03 = inout(zmm_reg) r0[3],
                s10 = inout(zmm_reg) r1[0], s11 = inout(zmm_reg) r1[1],
                s12 = inout(zmm_reg) r1[2], s13 = inout(zmm_reg) r1[3],
                s20 = inout(zmm_reg) r2[0], s21 = inout(zmm_reg) r2[1],
                s22 = inout(zmm_reg) r2[2], s23 = inout(zmm_reg) r2[3],
                at = const L * 64,
                prefetch = const L * 64 + STREAMS_PREFETCH_BYTES,
                x_at = const L * 3 * 64,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
    }
}

impl Rows for Lanes<4> {
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply<const L: usize>(&mut self, w: [*const u8; STREAMS], x: *const f32) {
        let [r0, r1, r2, r3] = self;
        // SAFETY: as with three rows.
        unsafe {
            asm!(
                "vmovups zmm20, zmmword ptr [{x} + {x_at}]",
                "vmovups zmm21, zmmword ptr [{x} + {x_at} + 64]",
                "vmovups zmm22, zmmword ptr [{x} + {x_at} + 128]",
                "vmovups zmm23, zmmword ptr [{x} + {x_at} + 192]",
                products!(0: 0 1 2 3),
                products!(1: 0 1 2 3),
                products!(2: 0 1 2 3),
                products!(3: 0 1 2 3),
                x = in(reg) x,
                w0 = in(reg) w[0], w1 = in(reg) w[1], w2 = in(reg) w[2], w3 = in(reg) w[3],
                out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                s00 = inout(zmm_reg) r0[0], s01 = inout(zmm_reg) r0[1],
                s02 = inout(zmm_reg) r0[2], s03 = inout(zmm_reg) r0[3],
                s10 = inout(zmm_reg) r1[0], s11 = inout(zmm_reg) r1[1],
                s12 = inout(zmm_reg) r1[2], s13 = inout(zmm_reg) r1[3],
                s20 = inout(zmm_reg) r2[0], s21 = inout(zmm_reg) r2[1],
                s22 = inout(zmm_reg) r2[2], s23 = inout(zmm_reg) r2[3],
                s30 = inout(zmm_reg) r3[0], s31 = inout(zmm_reg) r3[1],
                s32 = inout(zmm_reg) r3[2], s33 = inout(zmm_reg) r3[3],
                at = const L * 64,
                prefetch = const L * 64 + STREAMS_PREFETCH_BYTES,
                x_at = const L * 4 * 64,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
    }
}
