//! Operands of layers with Mamba2.
#![allow(dead_code, reason = "each test binary uses its part")]

use kernels::{Element, Kernels, StateRows, StateSlots};
use model::mamba::Mamba;

use crate::common::{Random, poison};

const fn mamba(
    (heads, head_dim): (usize, usize),
    (groups, state_dim): (usize, usize),
    taps: usize,
) -> Mamba {
    let (min_step, max_step) = (0.0, None);
    Mamba { heads, head_dim, groups, state_dim, taps, conv_bias: true, min_step, max_step }
}

/// Heads that share B and C or not, widths below, at and above those of vectors and tasks, few and
/// many taps, with and without a bias and limits of the time step.
pub const MAMBAS: [Mamba; 7] = [
    mamba((1, 1), (1, 1), 2),
    mamba((4, 24), (2, 12), 4),
    mamba((3, 17), (1, 33), 3),
    mamba((2, 64), (2, 16), 4),
    Mamba { conv_bias: false, ..mamba((6, 64), (1, 128), 4) },
    mamba((3, 95), (3, 7), 1),
    Mamba { min_step: 0.1, max_step: Some(0.25), ..mamba((4, 16), (2, 20), 4) },
];

/// Rows of a layer, of any sequences.
pub struct Case<T> {
    pub mamba: Mamba,
    pub draft_positions: usize,
    pub input: Vec<T>,
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    pub mixed: Vec<T>,
    pub numbers: Vec<f32>,
    pub gain: Vec<f32>,
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
    pub normed: Vec<T>,
}

/// Epsilon of the norm.
pub const EPS: f32 = 1e-5;

impl<T: Element> Case<T> {
    pub fn new(mamba: Mamba, rows: usize, seed: u64) -> Case<T> {
        let mut random = Random::new(seed);
        let mut numbers: Vec<f32> = random.vector(3 * mamba.heads);
        // States that last for some rows.
        numbers[..2 * mamba.heads].iter_mut().for_each(|number| *number -= 1.0);
        Case {
            mamba,
            draft_positions: 0,
            input: random.vector(rows * mamba.input_size()),
            weight: random.vector(mamba.taps * mamba.channels()),
            bias: random.vector(mamba.channels()),
            mixed: random.vector(rows * mamba.channels()),
            numbers,
            gain: random.vector(mamba.inner_size()),
        }
    }

    pub fn bias(&self) -> Option<&[f32]> {
        self.mamba.conv_bias.then_some(&self.bias[..])
    }

    /// Returns some of its rows.
    pub fn part(&self, rows: impl Iterator<Item = usize> + Clone) -> Case<T> {
        let rows_of = |all: &[T], width: usize| -> Vec<T> {
            rows.clone().flat_map(|row| &all[row * width..][..width]).copied().collect()
        };
        Case {
            mamba: self.mamba,
            draft_positions: self.draft_positions,
            input: rows_of(&self.input, self.mamba.input_size()),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            mixed: rows_of(&self.mixed, self.mamba.channels()),
            numbers: self.numbers.clone(),
            gain: self.gain.clone(),
        }
    }

    pub fn states(&self, slots: usize) -> States {
        States {
            inputs: vec![0.0; slots * self.mamba.inputs_len(self.draft_positions)],
            states: vec![0.0; slots * self.mamba.slot_len(self.draft_positions)],
        }
    }

    pub fn run(&self, kernels: &Kernels, sequences: &[StateRows], states: &mut States) -> Found<T> {
        let Case { mamba, input, weight, mixed, numbers, gain, .. } = self;
        let rows = input.len() / mamba.input_size();
        let (mut convolved, mut read) = (poison(mixed.len()), poison(rows * mamba.inner_size()));
        let inputs = StateSlots::new(&mut states.inputs, self.draft_positions);
        let bias = self.bias();
        kernels.mamba_convolution(mamba, sequences, input, weight, bias, inputs, &mut convolved);
        let states = StateSlots::new(&mut states.states, self.draft_positions);
        kernels.mamba_scan(mamba, sequences, mixed, input, numbers, states, &mut read);
        let mut normed = read.clone();
        kernels.group_norm(rows, mamba.groups, gain, EPS, &mut normed);
        Found { convolved, read, normed }
    }
}
