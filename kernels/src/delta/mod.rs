//! Layers with a state: the causal convolution of each channel and the recurrence of each value
//! head of Gated DeltaNet and of Kimi delta attention, the same of Mamba2, and the gated
//! convolution of short convolutions.
//!
//! All store a state of each sequence, in f32, and update it row by row: a row's bits therefore
//! depend on its sequence alone, and not on its partition. A sequence's state is stored at its
//! slot; a sequence that begins starts from a zero state.

mod compiled;
mod convolution;
mod inputs;
mod mamba;
mod recurrence;
mod rule;
mod scan;
mod shared_gate;
mod slots;
mod state_rows;

use model::delta::{DeltaNet, StateDecay};
use model::short_conv::ShortConv;

use crate::Kernels;
use crate::scratch::SharedPointer;

pub use compiled::DeltaTasks;
use convolution::{Convolution, ConvolutionPart, ConvolutionShape, ConvolutionWeights};
pub use inputs::DeltaInputs;
use inputs::HeadOutputs;
pub(crate) use recurrence::block_len;
pub(crate) use rule::KEY_DIM_MAX;
use shared_gate::GatedRow;
use slots::SlotLayout;
pub use slots::StateSlots;
pub use state_rows::StateRows;
use state_rows::check;

/// Number of adjacent channels of one task.
const TASK_CHANNELS: usize = 512;

impl Kernels {
    /// Computes `out[r] = silu(sum over t of weight[t] * x[r - taps + 1 + t])` of each channel.
    /// Rows before a sequence's own come from its slot, which then holds its last rows.
    ///
    /// `x` and `out` are `[rows, channels]`, `weight` `[taps, channels]`, a slot `[taps - 1 +
    /// draft_positions, channels]`.
    ///
    /// # Panics
    /// If shapes do not match, or sequences share rows or a slot.
    pub fn delta_convolution<T: DeltaTasks>(
        &self,
        net: &DeltaNet,
        sequences: &[StateRows],
        x: &[T],
        weight: &[f32],
        slots: StateSlots<'_>,
        out: &mut [T],
    ) {
        let shape = ConvolutionShape::of_rows(net.taps, net.channels());
        let weights = ConvolutionWeights { weight, bias: None };
        self.convolution(shape, sequences, x, weights, slots, out);
    }

    /// Computes `out[r] = C[r] * sum over t of weight[t] * (B * x)[r - taps + 1 + t]` of each
    /// channel. Products before a sequence's own rows come from its slot, which then holds those of
    /// its last rows.
    ///
    /// `input` is `[rows, 3, channels]` (B, C and x), `out` `[rows, channels]`, `weight` `[taps,
    /// channels]`, a slot `[taps - 1 + draft_positions, channels]`.
    ///
    /// # Panics
    /// If shapes do not match, or sequences share rows or a slot.
    pub fn short_convolution<T: DeltaTasks>(
        &self,
        conv: &ShortConv,
        sequences: &[StateRows],
        input: &[T],
        weight: &[f32],
        slots: StateSlots<'_>,
        out: &mut [T],
    ) {
        let shape = ConvolutionShape::gated(conv.taps, conv.channels);
        let weights = ConvolutionWeights { weight, bias: None };
        self.convolution(shape, sequences, input, weights, slots, out);
    }

    /// Computes a convolution with weights and, optionally, a bias.
    fn convolution<T: DeltaTasks>(
        &self,
        shape: ConvolutionShape,
        sequences: &[StateRows],
        x: &[T],
        ConvolutionWeights { weight, bias }: ConvolutionWeights<'_>,
        mut slots: StateSlots<'_>,
        out: &mut [T],
    ) {
        let ConvolutionShape { taps, channels, row_len, .. } = shape;
        let stored = if taps > 1 { taps - 1 + slots.draft_positions() } else { 0 };
        let slot_len = stored * channels;
        assert_eq!(x.len() % row_len, 0, "x is [rows, channels]");
        let rows = x.len() / row_len;
        assert_eq!(out.len(), rows * channels, "out is [rows, channels]");
        assert_eq!(weight.len(), taps * channels, "weight is [taps, channels]");
        assert!(bias.is_none_or(|bias| bias.len() == channels), "bias is [channels]");
        check(sequences, rows, slots.count(slot_len), slots.draft_positions());
        let (state, output) = (slots.pointer(), SharedPointer(out.as_mut_ptr()));
        let bytes = size_of_val(x) + size_of_val(out) + sequences.len() * slot_len * 4;
        let parts = channels.div_ceil(TASK_CHANNELS);
        let variant = self.variant;
        self.run_sized(sequences.len() * parts, bytes, &|task, _| {
            let sequence = &sequences[task / parts];
            let first = task % parts * TASK_CHANNELS;
            let call = Convolution {
                shape,
                x: x[sequence.range().start * row_len..].as_ptr(),
                weight: weight.as_ptr(),
                bias: bias.map(<[f32]>::as_ptr),
                state: state.pointer().wrapping_add(sequence.slot as usize * slot_len),
                stored,
                out: output.pointer().wrapping_add(sequence.range().start * channels),
                rows: sequence.rows as usize,
                past: sequence.past as usize,
                place: (sequence.past as usize).checked_rem(stored).unwrap_or(0),
            };
            let columns = first..channels.min(first + TASK_CHANNELS);
            // SAFETY: the variant was checked when the kernels were built; the sequence's rows and
            // slot are within the slices, which was checked, and no other task accesses these
            // channels of them.
            unsafe { T::convolve(variant, ConvolutionPart { call, columns }) };
        });
    }

    /// Computes the gated delta rule of each value head, row by row:
    ///
    /// ```text
    /// S = exp(-exp(rate) * softplus(a + bias)) * S
    /// S = S + k (sigmoid(b) * (v - k S))
    /// out = q S / sqrt(key_dim)
    /// ```
    ///
    /// with q and k divided by their lengths. With a decay by channel a and its bias are vectors,
    /// and each row of S has a factor of its own. A slot's state is `[value_heads, key_dim,
    /// value_dim]`, `out` `[rows, value_heads, value_dim]`.
    ///
    /// # Panics
    /// If shapes do not match, sequences share a slot, or keys have more than 1024 elements.
    pub fn delta_rule<T: DeltaTasks>(
        &self,
        net: &DeltaNet,
        sequences: &[StateRows],
        inputs: DeltaInputs<'_, T>,
        mut slots: StateSlots<'_>,
        out: &mut [T],
    ) {
        let heads = net.value_heads;
        assert!(net.key_dim <= KEY_DIM_MAX, "a key has at most {KEY_DIM_MAX} elements");
        assert_eq!(inputs.mixed.len() % net.channels(), 0, "mixed is [rows, channels]");
        let rows = inputs.mixed.len() / net.channels();
        inputs.check(net, rows);
        assert_eq!(out.len(), rows * net.value_size(), "out is [rows, value_heads, value_dim]");
        let (draft_positions, state_len) = (slots.draft_positions(), net.state_len());
        let layout = SlotLayout { len: net.slot_len(draft_positions), state_len, draft_positions };
        check(sequences, rows, slots.count(layout.len), draft_positions);
        slots.check_continued(&layout, sequences);
        let out = SharedPointer(out.as_mut_ptr());
        let outputs = HeadOutputs { slots: slots.pointer(), layout, out };
        let bytes = size_of_val(inputs.mixed) + 2 * sequences.len() * state_len * size_of::<f32>();
        let (variant, per_thread) = (self.variant, &self.per_thread);
        self.run_attention(sequences.len() * heads, bytes, &|task, thread| {
            let (sequence, head) = (&sequences[task / heads], task % heads);
            let copy = per_thread.for_thread(thread);
            // SAFETY: the variant was checked when the kernels were built; the sequence's rows and
            // slot are within the slices, which was checked, and no other task accesses this head's
            // state and its columns of the output. The rest of a slot is written after all tasks.
            unsafe {
                match net.decay {
                    StateDecay::PerHead => {
                        let task = inputs.head_rows(net, sequence, head, &outputs, copy);
                        T::follow_rule(variant, task);
                    }
                    StateDecay::PerChannel { .. } => {
                        let task = inputs.head_rows(net, sequence, head, &outputs, copy);
                        T::follow_channel_rule(variant, task);
                    }
                }
            }
        });
        for sequence in sequences {
            let widths = DeltaInputs::<T>::widths(net);
            slots.keep_drafts(&layout, sequence, widths, |row| inputs.row(net, row));
        }
    }

    /// Computes `out[r] = x[r] * sigmoid(input[r] · weight)`: the output of a shared expert times
    /// its gate.
    ///
    /// `input` is `[rows, hidden]`, `weight` `[hidden]`, `x` and `out` are `[rows, width]`.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn shared_gate<T: DeltaTasks>(
        &self,
        rows: usize,
        input: &[T],
        weight: &[f32],
        x: &[T],
        out: &mut [T],
    ) {
        assert_eq!(input.len(), rows * weight.len(), "input is [rows, hidden]");
        assert_eq!(x.len(), out.len(), "out is [rows, width]");
        assert_eq!(x.len() % rows.max(1), 0, "x is [rows, width]");
        let width = x.len().checked_div(rows).unwrap_or(0);
        let output = SharedPointer(out.as_mut_ptr());
        let bytes = size_of_val(input) + 2 * size_of_val(x);
        let variant = self.variant;
        self.run_sized(rows, bytes, &|row, _| {
            let input = &input[row * weight.len()..][..weight.len()];
            let x = &x[row * width..][..width];
            let out = output.pointer().wrapping_add(row * width);
            // SAFETY: the variant was checked when the kernels were built; the row is within `out`,
            // and no other task writes it.
            unsafe { T::weigh(variant, GatedRow { input, weight, x, out }) };
        });
    }
}
