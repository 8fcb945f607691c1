//! Kernel for few rows: weights are read from memory once and multiplied in registers.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::chains::{COLS, Chains, LINE, STEPS};
use super::panel::{Panel, widen};
use crate::linear::reader::Plain;
use crate::linear::task::TaskOperands;
use crate::linear::tuning::AVX512_PREFETCH_BYTES;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;

/// Returns the number of panels processed at a time for `rows` rows: as many as leave registers for
/// their quarters. They share the loads of x, and more columns side by side are more memory
/// streams, which increases the bandwidth.
pub(super) const fn panels(rows: usize) -> usize {
    match rows {
        0..=2 => 4,
        3..=4 => 3,
        _ => 2,
    }
}

/// Computes the chains of all columns of a task.
///
/// # Safety
/// The task has one tile of rows, and x is packed.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn chains(reader: Plain<bf16>, area: &TaskOperands, chains: &Chains) {
    for panel in chains.groups() {
        let call = Call { reader, x: area.packed.pointer(), chains, panel };
        let count = chains.together(panel);
        // SAFETY: these panels exist; the rest is the caller's promise.
        unsafe {
            macro_rules! rows {
                ($($rows:literal)*) => {
                    match chains.rows {
                        $(
                            $rows if count == panels($rows) => {
                                call.run::<{ panels($rows) }, $rows>();
                            }
                            $rows => call.run::<1, $rows>(),
                        )*
                        _ => unreachable!("a tile has at most eight rows"),
                    }
                };
            }
            rows!(1 2 3 4 5 6 7 8);
        }
    }
}

/// Some panels times all rows.
#[derive(Clone, Copy)]
struct Call<'a> {
    reader: Plain<bf16>,
    x: *const f32,
    chains: &'a Chains,
    /// First of the panels.
    panel: usize,
}

impl Call<'_> {
    /// Multiplies `P` panels by `R` rows along all of k.
    ///
    /// # Safety
    /// `P` panels from the first on exist, and the packed x has `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run<const P: usize, const R: usize>(self) {
        let Call { reader, chains, panel, mut x } = self;
        let panels: [Panel; P] = std::array::from_fn(|p| Panel::of(reader, chains, panel + p));
        let (lines, left) = (reader.inputs() / LINE, reader.inputs() % LINE);
        let mut sums = [[_mm512_setzero_ps(); R]; P];
        // Near the end of the columns the first lines of the next columns are prefetched.
        let distance_lines = lines.min(AVX512_PREFETCH_BYTES / 64);
        let row_bytes = reader.inputs() * size_of::<bf16>();
        let next = (P * COLS * row_bytes).wrapping_sub((lines - distance_lines) * 64);
        let mut distance = AVX512_PREFETCH_BYTES;
        for line in 0..lines {
            if line + distance_lines == lines {
                distance = next;
            }
            // SAFETY: the line exists, x has all lines.
            unsafe {
                let mut quarters = [[_mm512_setzero_si512(); COLS]; P];
                for p in 0..P {
                    quarters[p] = panels[p].line(line);
                    panels[p].prefetch(line, distance);
                }
                multiply(quarters, x, &mut sums);
            }
            x = x.wrapping_add(LINE * R);
        }
        if left > 0 {
            // SAFETY: these inputs exist; packed x has a whole line.
            unsafe {
                let mut quarters = [[_mm512_setzero_si512(); COLS]; P];
                for p in 0..P {
                    quarters[p] = panels[p].part(lines, left);
                }
                multiply(quarters, x, &mut sums);
            }
        }
        let to = chains.of(panel, 0);
        for r in 0..R {
            for p in 0..P {
                // SAFETY: there is space for the chains of every panel and row.
                unsafe { _mm512_storeu_ps(to.add((r * P + p) * Avx512::LANES), sums[p][r]) };
            }
        }
    }
}

/// Adds the products of a line to `sums`.
///
/// # Safety
/// `x` holds a line of `R` rows.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn multiply<const P: usize, const R: usize>(
    quarters: [[__m512i; COLS]; P],
    x: *const f32,
    sums: &mut [[__m512; R]; P],
) {
    for step in 0..STEPS {
        let mut weights = [_mm512_setzero_ps(); P];
        for p in 0..P {
            weights[p] = widen(quarters[p][step / 2], step % 2 == 1);
        }
        for r in 0..R {
            // SAFETY: the caller's promise.
            let x = unsafe { _mm512_broadcast_f32x4(_mm_loadu_ps(x.add((step * R + r) * 4))) };
            for p in 0..P {
                sums[p][r] = _mm512_fmadd_ps(weights[p], x, sums[p][r]);
            }
        }
    }
}
