//! Causal convolution of some channels of a sequence's rows, with SiLU, or of products with a gate.

use std::ops::Range;

use crate::number::Number;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{Simd, math};
use crate::variant::SimdTask;

/// Sizes and form of a convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvolutionShape {
    pub(super) taps: usize,
    pub(super) channels: usize,
    /// Number of elements of a row.
    pub(super) row_len: usize,
    /// Index in a row of its first channel.
    pub(super) first: usize,
    /// Rows consist of B, C and x: the inputs are the products of B and x, and the outputs are
    /// multiplied by C. Otherwise rows contain the inputs, and the outputs pass through SiLU.
    pub(super) is_gated: bool,
}

impl ConvolutionShape {
    /// Returns a convolution of rows that are the inputs.
    pub(super) const fn of_rows(taps: usize, channels: usize) -> ConvolutionShape {
        ConvolutionShape { taps, channels, row_len: channels, first: 0, is_gated: false }
    }

    /// Returns a convolution of rows that consist of B, C and x.
    pub(super) const fn gated(taps: usize, channels: usize) -> ConvolutionShape {
        ConvolutionShape { taps, channels, row_len: 3 * channels, first: 0, is_gated: true }
    }
}

/// Weights of a convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvolutionWeights<'a> {
    /// `[taps, channels]`.
    pub(super) weight: &'a [f32],
    /// `[channels]`.
    pub(super) bias: Option<&'a [f32]>,
}

/// Convolution of a sequence's rows; see [`crate::Kernels::delta_convolution`],
/// [`crate::Kernels::mamba_convolution`] and [`crate::Kernels::short_convolution`].
#[derive(Debug)]
pub struct Convolution<T> {
    pub(super) shape: ConvolutionShape,
    /// `[rows, row_len]`.
    pub(super) x: *const T,
    /// `[taps, channels]`.
    pub(super) weight: *const f32,
    /// `[channels]`, which the sums start from.
    pub(super) bias: Option<*const f32>,
    /// `[stored, channels]`: the previous rows, each at its position modulo `stored`.
    pub(super) state: *mut f32,
    /// Number of stored rows: at least `taps - 1`.
    pub(super) stored: usize,
    /// `[rows, channels]`.
    pub(super) out: *mut T,
    pub(super) rows: usize,
    /// Position of the first row.
    pub(super) past: usize,
    /// Place of the first row: its position modulo `stored`.
    pub(super) place: usize,
}

/// Convolution of some of its channels.
#[derive(Debug)]
pub struct ConvolutionPart<T> {
    pub(super) call: Convolution<T>,
    pub(super) columns: Range<usize>,
}

impl<T: Number> SimdTask for ConvolutionPart<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ConvolutionPart { call, columns } = self;
        for at in columns.clone().step_by(S::LANES) {
            let width = S::LANES.min(columns.end - at);
            // SAFETY: the columns are within the sequence's rows, its state and the weights.
            unsafe {
                for row in 0..call.rows {
                    let sum = call.sum(s, row, at, width);
                    let result = call.finish(s, row, at, width, sum);
                    let out = call.out.add(row * call.shape.channels + at);
                    store_up_to(s, out, result, width);
                }
                call.keep(s, at, width);
            }
        }
    }
}

impl<T: Number> Convolution<T> {
    /// Returns the row that is `back` rows before the sequence's first.
    ///
    /// # Safety
    /// `1 <= back < taps`; channels `at..at + width` are the state's.
    #[inline(always)]
    unsafe fn before<S: Simd>(&self, s: S, back: usize, at: usize, width: usize) -> S::F {
        if back > self.past {
            return s.zero();
        }
        let ends = if self.place < back { self.place + self.stored } else { self.place };
        let place = ends - back;
        let from = self.state.wrapping_add(place * self.shape.channels + at);
        // SAFETY: the caller's promise.
        unsafe { load_up_to(s, from.cast_const(), width) }
    }

    /// Returns the inputs of a row.
    ///
    /// # Safety
    /// Same contract as [`Convolution::sum`].
    #[inline(always)]
    unsafe fn input<S: Simd>(&self, s: S, row: usize, at: usize, width: usize) -> S::F {
        let ConvolutionShape { channels, row_len, first, is_gated, .. } = self.shape;
        // SAFETY: the caller's promise; x follows B and C.
        unsafe {
            let first = self.x.add(row * row_len + first + at);
            let value = load_up_to(s, first, width);
            if is_gated {
                s.mul(value, load_up_to(s, first.add(2 * channels), width))
            } else {
                value
            }
        }
    }

    /// Returns the outputs of a row, given the sums over the taps.
    ///
    /// # Safety
    /// Same contract as [`Convolution::sum`].
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, row: usize, at: usize, width: usize, sum: S::F) -> S::F {
        let ConvolutionShape { channels, row_len, is_gated, .. } = self.shape;
        if !is_gated {
            let [result] = math::silu(s, [sum]);
            return result;
        }
        // SAFETY: the caller's promise; C follows B.
        unsafe {
            let gate = self.x.add(row * row_len + channels + at);
            s.mul(load_up_to(s, gate, width), sum)
        }
    }

    /// Returns the sum of the bias and over the taps, the oldest row first.
    ///
    /// # Safety
    /// The row is the sequence's; `width <= LANES` channels starting at `at` are the call's.
    #[inline(always)]
    unsafe fn sum<S: Simd>(&self, s: S, row: usize, at: usize, width: usize) -> S::F {
        let ConvolutionShape { taps, channels, .. } = self.shape;
        // No closure, which would not be compiled with the variant's instructions.
        let mut sum = match self.bias {
            // SAFETY: the caller's promise.
            Some(bias) => unsafe { load_up_to(s, bias.add(at), width) },
            None => s.zero(),
        };
        for tap in 0..taps {
            let back = taps - 1 - tap;
            // SAFETY: the row, and those before it in the state, are the call's.
            unsafe {
                let value = match row.checked_sub(back) {
                    Some(row) => self.input(s, row, at, width),
                    None => self.before(s, back - row, at, width),
                };
                let weight = load_up_to(s, self.weight.add(tap * channels + at), width);
                sum = s.fma(weight, value, sum);
            }
        }
        sum
    }

    /// Stores the last rows at their places.
    ///
    /// # Safety
    /// Same contract as [`Convolution::sum`].
    #[inline(always)]
    unsafe fn keep<S: Simd>(&self, s: S, at: usize, width: usize) {
        let first = self.rows.saturating_sub(self.stored);
        let mut place = self.place + first;
        for row in first..self.rows {
            // A division would take longer than the rest.
            place = if place < self.stored { place } else { place % self.stored };
            // SAFETY: the caller's promise; the place is the state's.
            unsafe {
                let value = self.input(s, row, at, width);
                store_up_to(s, self.state.add(place * self.shape.channels + at), value, width);
            }
            place += 1;
        }
    }
}
