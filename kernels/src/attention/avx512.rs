//! Scores of a few queries over bf16 keys with AVX-512. The chains are the four dwords of a quarter
//! of a vector: sixteen bytes of each of four positions make up a vector, which takes half of the
//! shuffles that whole columns take. The query's factors are loaded once for two vectors; columns
//! would load them for each product, and loads are the bottleneck on these machines.
//!
//! The products are assembly, because the compiler would keep the values loaded for eight positions
//! for the next eight, and the sums would go through memory.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::keys::{Keys, Queries};
use super::prefetch::Prefetcher;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use crate::simd::avx512_f32fma::add_chains;

/// Positions of a call.
const POSITIONS: usize = Avx512::LANES;
/// Elements of one position that a vector holds.
const SLAB: usize = 2 * Avx512::LANES;
const QUARTERS: usize = 4;
/// Maximum number of queries of a call.
const MAX_QUERIES: usize = 4;

/// Returns the sums of `MR` queries and up to sixteen positions, one position per lane.
///
/// # Safety
/// The machine has AVX-512; the positions are readable; `queries` are `MR` packed heads.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn scores<const MR: usize>(
    keys: &Keys<bf16>,
    queries: Queries,
    prefetcher: &mut Prefetcher<'_>,
) -> [[f32; POSITIONS]; MR] {
    // SAFETY: the caller's promise.
    let s = unsafe { Avx512::new() };
    let mut sums = [[s.zero(); MAX_QUERIES]; QUARTERS];
    for at in (0..keys.head_dim).step_by(SLAB) {
        keys.prefetch(s, 0, at, prefetcher);
        let padded;
        let (rows, stride) = match keys.whole::<Avx512>(0, at) {
            Some(whole) => whole,
            None => {
                // SAFETY: the caller's promise.
                padded = unsafe { keys.padded::<Avx512>(0, at) };
                (padded.as_ptr().cast(), size_of_val(&padded[0]))
            }
        };
        let q = std::array::from_fn(|i| queries.from.wrapping_add(i * queries.stride + at / 2));
        let slab = Slab { rows, stride, q, odd_bytes: 4 * queries.odd };
        let later = Slab { rows: rows.wrapping_add(2 * QUARTERS * stride), ..slab };
        let [a, b, c, d] = &mut sums;
        // SAFETY: the caller's promise; packed queries are padded to whole slabs.
        unsafe {
            slab.add_products::<MR>(a, b);
            later.add_products::<MR>(c, d);
        }
    }
    let mut out = [[0.0; POSITIONS]; MR];
    for (i, out) in out.iter_mut().enumerate() {
        let of_query = [sums[0][i], sums[1][i], sums[2][i], sums[3][i]];
        // SAFETY: a vector of floats.
        unsafe { s.store(out.as_mut_ptr(), add_chains(of_query)) };
    }
    out
}

/// Loads sixteen bytes of each of four rows into each of four vectors.
macro_rules! quarters {
    ($rows:literal: $v0:literal $v1:literal $v2:literal $v3:literal) => {
        concat!(
            "vmovdqu64 ",
            $v0,
            ", [",
            $rows,
            "]\n",
            "vmovdqu64 ",
            $v1,
            ", [",
            $rows,
            " + {stride}]\n",
            "vmovdqu64 ",
            $v2,
            ", [",
            $rows,
            " + 2*{stride}]\n",
            "vmovdqu64 ",
            $v3,
            ", [",
            $rows,
            " + {stride_3}]\n",
            "vshufi64x2 {ta}, ",
            $v0,
            ", ",
            $v1,
            ", 0x44\n",
            "vshufi64x2 {tb}, ",
            $v2,
            ", ",
            $v3,
            ", 0x44\n",
            "vshufi64x2 {tq}, ",
            $v0,
            ", ",
            $v1,
            ", 0xee\n",
            "vshufi64x2 ",
            $v3,
            ", ",
            $v2,
            ", ",
            $v3,
            ", 0xee\n",
            "vshufi64x2 ",
            $v0,
            ", {ta}, {tb}, 0x88\n",
            "vshufi64x2 ",
            $v1,
            ", {ta}, {tb}, 0xdd\n",
            "vshufi64x2 ",
            $v2,
            ", {tq}, ",
            $v3,
            ", 0x88\n",
            "vshufi64x2 ",
            $v3,
            ", {tq}, ",
            $v3,
            ", 0xdd\n",
        )
    };
}

/// Multiplies one half of the dwords of a quarter of both vectors by that of each query.
macro_rules! products {
    ($widen:literal $by:literal, $a:literal $b:literal, $at:literal; $([$q:ident $f:ident $l:ident])*) => {
        concat!(
            $widen, " {ta}, ", $a, ", ", $by, "\n",
            $widen, " {tb}, ", $b, ", ", $by, "\n",
            $(
                "vbroadcastf32x4 {tq}, xmmword ptr [{", stringify!($q), "}", $at, "]\n",
                "vfmadd231ps {", stringify!($f), "}, {ta}, {tq}\n",
                "vfmadd231ps {", stringify!($l), "}, {tb}, {tq}\n",
            )*
        )
    };
}

macro_rules! add_products {
    ($slab:ident, $first:ident, $last:ident; $([$i:literal $q:ident $f:ident $l:ident])*) => {
        asm!(
            quarters!("{rows}": "{a0}" "{a1}" "{a2}" "{a3}"),
            quarters!("{later}": "{b0}" "{b1}" "{b2}" "{b3}"),
            products!("vpslld" "16", "{a0}" "{b0}", ""; $([$q $f $l])*),
            products!("vpandd" "{mask}", "{a0}" "{b0}", " + {odd}"; $([$q $f $l])*),
            products!("vpslld" "16", "{a1}" "{b1}", " + 16"; $([$q $f $l])*),
            products!("vpandd" "{mask}", "{a1}" "{b1}", " + {odd} + 16"; $([$q $f $l])*),
            products!("vpslld" "16", "{a2}" "{b2}", " + 32"; $([$q $f $l])*),
            products!("vpandd" "{mask}", "{a2}" "{b2}", " + {odd} + 32"; $([$q $f $l])*),
            products!("vpslld" "16", "{a3}" "{b3}", " + 48"; $([$q $f $l])*),
            products!("vpandd" "{mask}", "{a3}" "{b3}", " + {odd} + 48"; $([$q $f $l])*),
            rows = in(reg) $slab.rows,
            later = in(reg) $slab.rows.wrapping_add(QUARTERS * $slab.stride),
            stride = in(reg) $slab.stride,
            stride_3 = in(reg) 3 * $slab.stride,
            odd = in(reg) $slab.odd_bytes,
            mask = in(zmm_reg) _mm512_set1_epi32(-0x1_0000),
            a0 = out(zmm_reg) _, a1 = out(zmm_reg) _, a2 = out(zmm_reg) _, a3 = out(zmm_reg) _,
            b0 = out(zmm_reg) _, b1 = out(zmm_reg) _, b2 = out(zmm_reg) _, b3 = out(zmm_reg) _,
            ta = out(zmm_reg) _, tb = out(zmm_reg) _, tq = out(zmm_reg) _,
            $(
                $q = in(reg) $slab.q[$i],
                $f = inout(zmm_reg) $first[$i],
                $l = inout(zmm_reg) $last[$i],
            )*
            options(readonly, nostack)
        )
    };
}

/// A slab of eight positions and the matching part of the queries.
#[derive(Clone, Copy)]
struct Slab {
    rows: *const u8,
    stride: usize,
    /// Even elements of each query.
    q: [*const f32; MAX_QUERIES],
    /// Distance in bytes from the even elements to the odd ones.
    odd_bytes: usize,
}

impl Slab {
    /// Adds the products of the first four positions and of the last four.
    ///
    /// # Safety
    /// A vector of each row and a slab of each of `MR` queries are readable.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_products<const MR: usize>(
        self,
        first: &mut [__m512; MAX_QUERIES],
        last: &mut [__m512; MAX_QUERIES],
    ) {
        // SAFETY: the caller's promise; only registers are written.
        unsafe {
            match MR {
                1 => add_products!(self, first, last; [0 q0 f0 l0]),
                2 => add_products!(self, first, last; [0 q0 f0 l0] [1 q1 f1 l1]),
                3 => add_products!(self, first, last; [0 q0 f0 l0] [1 q1 f1 l1] [2 q2 f2 l2]),
                _ => add_products!(
                    self, first, last; [0 q0 f0 l0] [1 q1 f1 l1] [2 q2 f2 l2] [3 q3 f3 l3]
                ),
            }
        }
    }
}
