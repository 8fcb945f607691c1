//! Operands of the gated delta rule.

use model::delta::{DeltaNet, StateDecay};

use super::recurrence::HeadRows;
use super::rule::DeltaRule;
use super::state_rows::StateRows;
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
    /// `[slots, value_heads, key_dim, value_dim]`.
    pub(super) states: SharedPointer<f32>,
    /// `[rows, value_heads, value_dim]`.
    pub(super) out: SharedPointer<T>,
}

impl<T> DeltaInputs<'_, T> {
    /// # Panics
    /// If a shape does not match.
    pub(super) fn check(&self, net: &DeltaNet, rows: usize) {
        let (heads, decays) = (net.value_heads, net.decays_len());
        let is_by_channel = matches!(net.decay, StateDecay::PerChannel { .. });
        let of_row = if is_by_channel { decays } else { 0 };
        assert_eq!(self.ba.len(), rows * net.rates_size(), "ba is [rows, numbers of a row]");
        assert_eq!(self.decays.len(), rows * of_row, "decays is [rows, value_heads, key_dim]");
        assert_eq!(self.rates.len(), heads + decays, "rates is [value_heads] and the biases of a");
    }

    /// Returns the task of a head over a sequence's rows. The shapes were checked.
    pub(super) fn head_rows<const BY_CHANNEL: bool>(
        &self,
        net: &DeltaNet,
        sequence: &StateRows,
        head: usize,
        outputs: &HeadOutputs<T>,
    ) -> HeadRows<DeltaRule<T, BY_CHANNEL>> {
        let (heads, first) = (net.value_heads, sequence.range().start);
        let decays_of_row = if BY_CHANNEL { net.decays_len() } else { 0 };
        let first_bias = heads + head * if BY_CHANNEL { net.key_dim } else { 1 };
        let state_at =
            sequence.slot as usize * net.state_len() + head * net.key_dim * net.value_dim;
        let rule = DeltaRule {
            net: *net,
            head,
            rate: self.rates[head],
            biases: self.rates[first_bias..].as_ptr(),
            mixed: self.mixed[first * net.channels()..].as_ptr(),
            ba: self.ba[first * net.rates_size()..].as_ptr(),
            decays: self.decays[first * decays_of_row..].as_ptr(),
            out: outputs.out.pointer().wrapping_add(first * net.value_size()),
            state: outputs.states.pointer().wrapping_add(state_at),
        };
        HeadRows { recurrence: rule, rows: sequence.rows as usize, begins: sequence.begins }
    }
}
