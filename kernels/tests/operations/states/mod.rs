//! Operands of layers with a state.
#![allow(dead_code, reason = "each test binary uses its part")]

use kernels::{DeltaInputs, Element, Kernels, StateRows, StateSlots};
use model::delta::{DeltaNet, StateDecay};

use crate::common::{Random, poison};

const fn net(
    (key_heads, value_heads): (usize, usize),
    (key_dim, value_dim): (usize, usize),
    taps: usize,
) -> DeltaNet {
    let (takes_turns, decay) = (false, StateDecay::PerHead);
    DeltaNet { key_heads, value_heads, takes_turns, key_dim, value_dim, taps, decay }
}

/// Returns a net of which each channel has a decay.
const fn by_channel(net: DeltaNet) -> DeltaNet {
    DeltaNet { decay: StateDecay::PerChannel { rank: 8 }, ..net }
}

/// Heads that share keys or not, widths below, at and above those of vectors, few and many taps,
/// decays of heads and of channels.
pub const NETS: [DeltaNet; 12] = [
    net((1, 1), (1, 1), 2),
    net((2, 4), (12, 24), 4),
    net((1, 3), (33, 17), 3),
    net((2, 2), (16, 64), 4),
    net((1, 2), (128, 128), 4),
    net((3, 3), (7, 95), 1),
    DeltaNet { takes_turns: true, ..net((2, 4), (12, 24), 4) },
    by_channel(net((1, 1), (1, 1), 2)),
    by_channel(net((2, 4), (12, 24), 4)),
    by_channel(net((3, 3), (33, 17), 3)),
    by_channel(net((2, 2), (16, 64), 4)),
    by_channel(net((2, 2), (128, 128), 4)),
];

/// Returns the number of elements of a row of decays by channel.
fn decays_of_row(net: DeltaNet) -> usize {
    net.decay_rank().map_or(0, |_| net.decays_len())
}

/// Rows of a layer, of any sequences.
pub struct Case<T> {
    pub net: DeltaNet,
    pub draft_positions: usize,
    pub x: Vec<T>,
    pub weight: Vec<f32>,
    pub mixed: Vec<T>,
    pub ba: Vec<T>,
    /// Empty with a decay per head.
    pub decays: Vec<T>,
    pub rates: Vec<f32>,
}

/// States of the sequences.
pub struct States {
    pub inputs: Vec<f32>,
    pub states: Vec<f32>,
}

/// Results of a call.
pub struct Found<T> {
    pub convolved: Vec<T>,
    pub read: Vec<T>,
}

impl<T: Element> Case<T> {
    pub fn new(net: DeltaNet, rows: usize, seed: u64) -> Case<T> {
        let mut random = Random::new(seed);
        Case {
            net,
            draft_positions: 0,
            x: random.vector(rows * net.channels()),
            weight: random.vector(net.taps * net.channels()),
            mixed: random.vector(rows * net.channels()),
            ba: random.vector(rows * net.rates_size()),
            decays: random.vector(rows * decays_of_row(net)),
            // States that last for some rows.
            rates: random
                .vector::<f32>(net.value_heads + net.decays_len())
                .iter()
                .map(|x| x - 2.0)
                .collect(),
        }
    }

    pub fn inputs(&self) -> DeltaInputs<'_, T> {
        let Case { mixed, ba, decays, rates, .. } = self;
        DeltaInputs { mixed, ba, decays, rates }
    }

    /// Returns some of its rows.
    pub fn part(&self, rows: impl Iterator<Item = usize> + Clone) -> Case<T> {
        let of = |all: &[T], width: usize| -> Vec<T> {
            rows.clone().flat_map(|row| &all[row * width..][..width]).copied().collect()
        };
        let channels = self.net.channels();
        Case {
            net: self.net,
            draft_positions: self.draft_positions,
            x: of(&self.x, channels),
            weight: self.weight.clone(),
            mixed: of(&self.mixed, channels),
            ba: of(&self.ba, self.net.rates_size()),
            decays: of(&self.decays, decays_of_row(self.net)),
            rates: self.rates.clone(),
        }
    }

    pub fn states(&self, slots: usize) -> States {
        States {
            inputs: vec![0.0; slots * self.net.inputs_len(self.draft_positions)],
            states: vec![0.0; slots * self.net.slot_len(self.draft_positions)],
        }
    }

    pub fn run(&self, kernels: &Kernels, sequences: &[StateRows], states: &mut States) -> Found<T> {
        let rows = self.x.len() / self.net.channels();
        let mut found =
            Found { convolved: poison(self.x.len()), read: poison(rows * self.net.value_size()) };
        let (net, inputs) = (&self.net, StateSlots::new(&mut states.inputs, self.draft_positions));
        let out = &mut found.convolved;
        kernels.delta_convolution(net, sequences, &self.x, &self.weight, inputs, out);
        let states = StateSlots::new(&mut states.states, self.draft_positions);
        let out = &mut found.read;
        kernels.delta_rule(net, sequences, self.inputs(), states, out);
        found
    }
}
