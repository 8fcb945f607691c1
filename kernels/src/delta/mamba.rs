//! The convolution, the recurrence and the norm of Mamba2.

use model::mamba::Mamba;

use super::DeltaTasks;
use super::convolution::{ConvolutionShape, ConvolutionWeights};
use super::recurrence::HeadRows;
use super::scan::{STATE_DIM_MAX, Scan};
use super::state_rows::{StateRows, check};
use crate::Kernels;
use crate::scratch::SharedPointer;

impl Kernels {
    /// Computes `out[r] = silu(bias + sum over t of weight[t] * x[r - taps + 1 + t])` of each
    /// channel of x, B and C. Rows before a sequence's own come from its state, which then holds
    /// its last `taps - 1` rows.
    ///
    /// `input` is `[rows, input_size]` (z, x, B, C and dt), `weight` `[taps, channels]`, `bias`
    /// `[channels]`, `state` `[slots, taps - 1, channels]`, `out` `[rows, channels]`.
    ///
    /// # Panics
    /// If shapes do not match, or sequences share rows or a slot.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each of its own type.
    pub fn mamba_convolution<T: DeltaTasks>(
        &self,
        mamba: &Mamba,
        sequences: &[StateRows],
        input: &[T],
        weight: &[f32],
        bias: Option<&[f32]>,
        state: &mut [f32],
        out: &mut [T],
    ) {
        let shape = ConvolutionShape {
            first: mamba.inner_size(),
            row_len: mamba.input_size(),
            ..ConvolutionShape::of_rows(mamba.taps, mamba.channels())
        };
        let weights = ConvolutionWeights { weight, bias };
        self.convolution(shape, sequences, input, weights, state, out);
    }

    /// Computes the recurrence of each head, row by row, and its gate:
    ///
    /// ```text
    /// step = limited softplus(dt + numbers[1])
    /// S = exp(-exp(numbers[0]) * step) * S + step * x (outer) B
    /// out = (S C + numbers[2] * x) * silu(z)
    /// ```
    ///
    /// `mixed` is `[rows, channels]` (x, B and C), `input` `[rows, input_size]` (z, what `mixed`
    /// was computed from, and dt), `numbers` `[3, heads]`, `states` `[slots, heads, state_dim,
    /// head_dim]`, `out` `[rows, heads, head_dim]`.
    ///
    /// # Panics
    /// If shapes do not match, sequences share a slot, or B has more than 1024 elements.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each of its own type.
    pub fn mamba_scan<T: DeltaTasks>(
        &self,
        mamba: &Mamba,
        sequences: &[StateRows],
        mixed: &[T],
        input: &[T],
        numbers: &[f32],
        states: &mut [f32],
        out: &mut [T],
    ) {
        let heads = mamba.heads;
        assert!(mamba.state_dim <= STATE_DIM_MAX, "B has at most {STATE_DIM_MAX} elements");
        assert!(heads.is_multiple_of(mamba.groups), "groups have the same number of heads");
        assert_eq!(mixed.len() % mamba.channels(), 0, "mixed is [rows, channels]");
        let rows = mixed.len() / mamba.channels();
        assert_eq!(input.len(), rows * mamba.input_size(), "input is [rows, input_size]");
        assert_eq!(numbers.len(), 3 * heads, "numbers is [3, heads]");
        assert_eq!(out.len(), rows * mamba.inner_size(), "out is [rows, heads, head_dim]");
        assert_eq!(states.len() % mamba.state_len(), 0, "states is [slots, state]");
        check(sequences, rows, states.len() / mamba.state_len());
        let (states, output) =
            (SharedPointer(states.as_mut_ptr()), SharedPointer(out.as_mut_ptr()));
        let bytes = size_of_val(mixed) + 2 * sequences.len() * mamba.state_bytes();
        let variant = self.variant;
        self.run_attention(sequences.len() * heads, bytes, &|task, _| {
            let (sequence, head) = (&sequences[task / heads], task % heads);
            let first = sequence.range().start;
            let head_state =
                sequence.slot as usize * mamba.state_len() + head * mamba.head_state_len();
            let scan = Scan {
                mamba: *mamba,
                head,
                numbers: [numbers[head], numbers[heads + head], numbers[2 * heads + head]],
                mixed: mixed[first * mamba.channels()..].as_ptr(),
                input: input[first * mamba.input_size()..].as_ptr(),
                out: output.pointer().wrapping_add(first * mamba.inner_size()),
                state: states.pointer().wrapping_add(head_state),
            };
            let (rows, begins) = (sequence.rows as usize, sequence.begins);
            // SAFETY: the variant was checked when the kernels were built; the sequence's rows and
            // slot are within the slices, which was checked, and no other task accesses this head's
            // state and its elements of the output.
            unsafe { T::scan(variant, HeadRows { recurrence: scan, rows, begins }) };
        });
    }
}
