//! Operands of the gated delta rule.

use model::delta::DeltaNet;

use super::recurrence::HeadRows;
use super::rule::DeltaRule;
use super::slots::SlotLayout;
use super::state_rows::StateRows;
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Inputs of the gated delta rule of rows; see [`crate::Kernels::delta_rule`].
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a, T> {
    /// q, k and v: `[rows, channels]`.
    pub mixed: &'a [T],
    /// b and a: `[rows, 2, value_heads]`; with a decay by channel b alone: `[rows, value_heads]`.
    pub ba: &'a [T],
    /// a with a decay by channel: `[rows, value_heads, key_dim]`; otherwise empty.
    pub decays: &'a [T],
    /// Logarithms of the rates of decay `[value_heads]`, followed by the biases of a:
    /// `[value_heads]`, or by channel `[value_heads, key_dim]`.
    pub rates: &'a [f32],
}

/// States and output of all heads.
pub(super) struct HeadOutputs<T> {
    /// Slots whose states are `[value_heads, key_dim, value_dim]`.
    pub(super) slots: SharedPointer<f32>,
    pub(super) layout: SlotLayout,
    /// `[rows, value_heads, value_dim]`.
    pub(super) out: SharedPointer<T>,
}

impl<T: Number> DeltaInputs<'_, T> {
    /// # Panics
    /// If a shape does not match.
    pub(super) fn check(&self, net: &DeltaNet, rows: usize) {
        let (heads, decays) = (net.value_heads, net.decays_len());
        let [_, _, of_row] = Self::widths(net);
        assert_eq!(self.ba.len(), rows * net.rates_size(), "ba is [rows, numbers of a row]");
        assert_eq!(self.decays.len(), rows * of_row, "decays is [rows, value_heads, key_dim]");
        assert_eq!(self.rates.len(), heads + decays, "rates is [value_heads] and the biases of a");
    }

    /// Returns the task of a head over a sequence's rows, with space for a copy of a block. The
    /// shapes were checked.
    ///
    /// # Safety
    /// The sequence's slot is among those of `outputs`, and no other thread writes what is not this
    /// head's state.
    pub(super) unsafe fn head_rows<const BY_CHANNEL: bool>(
        &self,
        net: &DeltaNet,
        sequence: &StateRows,
        head: usize,
        outputs: &HeadOutputs<T>,
        copy: *mut f32,
    ) -> HeadRows<DeltaRule<T, BY_CHANNEL>> {
        let (heads, first) = (net.value_heads, sequence.range().start);
        let decays_of_row = if BY_CHANNEL { net.decays_len() } else { 0 };
        let first_bias = heads + head * if BY_CHANNEL { net.key_dim } else { 1 };
        let slot = outputs.layout.slot(outputs.slots, sequence);
        let of_rows = |[mixed, ba, decays]: [*const T; 3], out_stride| DeltaRule {
            net: *net,
            head,
            rate: self.rates[head],
            biases: self.rates[first_bias..].as_ptr(),
            mixed,
            ba,
            decays,
            out: outputs.out.pointer().wrapping_add(first * net.value_size()),
            out_stride,
            state: slot.state().wrapping_add(head * net.key_dim * net.value_dim),
        };
        let (channels, rates) = (net.channels(), net.rates_size());
        let drafts = [0, channels, channels + rates].map(|before| slot.drafts(before));
        let rows = [
            self.mixed[first * channels..].as_ptr(),
            self.ba[first * rates..].as_ptr(),
            self.decays[first * decays_of_row..].as_ptr(),
        ];
        HeadRows {
            accepted: of_rows(drafts, 0),
            // SAFETY: the caller's promise.
            accepted_rows: unsafe { slot.accepted(sequence) },
            recurrence: of_rows(rows, net.value_size()),
            rows: sequence.rows as usize,
            drafts: sequence.drafts as usize,
            begins: sequence.past == 0,
            copy,
        }
    }

    /// Returns the inputs of a row, of [`DeltaInputs::widths`] elements.
    pub(super) fn row(&self, net: &DeltaNet, row: usize) -> [&[T]; 3] {
        let [channels, rates, decays] = Self::widths(net);
        [
            &self.mixed[row * channels..][..channels],
            &self.ba[row * rates..][..rates],
            &self.decays[row * decays..][..decays],
        ]
    }

    /// Returns the numbers of elements of a row's inputs.
    pub(super) fn widths(net: &DeltaNet) -> [usize; 3] {
        let channels_and_rates = net.channels() + net.rates_size();
        [net.channels(), net.rates_size(), net.state_row_len() - channels_and_rates]
    }
}
