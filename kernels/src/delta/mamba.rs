//! The convolution, the recurrence and the norm of Mamba2.

use model::mamba::Mamba;

use super::DeltaTasks;
use super::convolution::{ConvolutionShape, ConvolutionWeights};
use super::recurrence::HeadRows;
use super::scan::{STATE_DIM_MAX, Scan};
use super::slots::{SlotLayout, StateSlots};
use super::state_rows::{StateRows, check};
use crate::Kernels;
use crate::scratch::SharedPointer;

impl Kernels {
    /// Computes `out[r] = silu(bias + sum over t of weight[t] * x[r - taps + 1 + t])` of each
    /// channel of x, B and C. Rows before a sequence's own come from its slot, which then holds its
    /// last rows.
    ///
    /// `input` is `[rows, input_size]` (z, x, B, C and dt), `weight` `[taps, channels]`, `bias`
    /// `[channels]`, a slot `[taps - 1 + draft_positions, channels]`, `out` `[rows, channels]`.
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
        slots: StateSlots<'_>,
        out: &mut [T],
    ) {
        let shape = ConvolutionShape {
            first: mamba.inner_size(),
            row_len: mamba.input_size(),
            ..ConvolutionShape::of_rows(mamba.taps, mamba.channels())
        };
        let weights = ConvolutionWeights { weight, bias };
        self.convolution(shape, sequences, input, weights, slots, out);
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
    /// was computed from, and dt), `numbers` `[3, heads]`, a slot's state `[heads, state_dim,
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
        mut slots: StateSlots<'_>,
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
        let (draft_positions, state_len) = (slots.draft_positions(), mamba.state_len());
        let len = mamba.slot_len(draft_positions);
        let layout = SlotLayout { len, state_len, draft_positions };
        check(sequences, rows, slots.count(len), draft_positions);
        slots.check_continued(&layout, sequences);
        let (first_slot, output) = (slots.pointer(), SharedPointer(out.as_mut_ptr()));
        let bytes = size_of_val(mixed) + 2 * sequences.len() * state_len * size_of::<f32>();
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let (channels, input_size) = (mamba.channels(), mamba.input_size());
        let dt_at = |row: usize| (row + 1) * input_size - heads;
        self.run_attention(sequences.len() * heads, bytes, &|task, thread| {
            let (sequence, head) = (&sequences[task / heads], task % heads);
            let (first, slot) = (sequence.range().start, layout.slot(first_slot, sequence));
            let z = input[first * input_size..].as_ptr();
            let scan = Scan {
                mamba: *mamba,
                head,
                numbers: [numbers[head], numbers[heads + head], numbers[2 * heads + head]],
                mixed: mixed[first * channels..].as_ptr(),
                dt: input[dt_at(first)..].as_ptr(),
                dt_stride: input_size,
                z,
                z_stride: input_size,
                out: output.pointer().wrapping_add(first * mamba.inner_size()),
                out_stride: mamba.inner_size(),
                state: slot.state().wrapping_add(head * mamba.head_state_len()),
            };
            let (rows, drafts) = (sequence.rows as usize, sequence.drafts as usize);
            // SAFETY: the variant was checked when the kernels were built; the sequence's rows and
            // slot are within the slices, which was checked, and no other task accesses this head's
            // state and its elements of the output. The rest of a slot is written after all tasks.
            unsafe {
                let task = HeadRows {
                    accepted: scan.of_drafts(slot),
                    accepted_rows: slot.accepted(sequence),
                    recurrence: scan,
                    rows,
                    drafts,
                    begins: sequence.past == 0,
                    copy: per_thread.for_thread(thread),
                };
                T::scan(variant, task);
            }
        });
        for sequence in sequences {
            slots.keep_drafts(&layout, sequence, [channels, heads], |row| {
                [&mixed[row * channels..][..channels], &input[dt_at(row)..][..heads]]
            });
        }
    }
}
