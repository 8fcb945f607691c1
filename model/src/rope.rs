//! Rotary position embedding: which elements of a head are rotated, and how fast.
//!
//! **Frequencies that depend on the length.** Two kinds of scaling, longrope and dynamic NTK, have
//! other frequencies for longer texts. A cached key keeps the rotation that it was stored with, and
//! a row may depend on nothing but its own sequence, so the length that counts is declared when a
//! sequence begins and never changes: [`SequenceLength`], its prompt and the most tokens that may
//! follow. All rows of a sequence, of prefill and of decode, then rotate alike.
//!
//! Against Hugging Face transformers, which takes the length of the text so far (of the longest
//! sequence of the batch):
//! - A text that cannot pass the original length has the same frequencies there at every step, and
//!   so has, with longrope, one whose prompt already passed it.
//! - A longrope text that passes the original length while it grows has the long factors here from
//!   its first token; there it has the short ones until it passes, when all keys are computed anew
//!   with the long ones.
//! - A dynamic text that passes it has here the frequencies that transformers gives one forward
//!   pass over the whole declared length; there they change with each further token, and keys keep
//!   those of the step that cached them.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// YaRN's rotations within the original length from which on a frequency is kept, where a file
/// says none.
pub const YARN_BETA_FAST: f64 = 32.0;
/// YaRN's rotations up to which a frequency is divided by the whole factor, where a file says none.
pub const YARN_BETA_SLOW: f64 = 1.0;

/// The most positions that a sequence can come to have, declared when it begins: its prompt and the
/// most tokens that may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceLength(pub u32);

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the geometric sequence of wavelengths (`rope_theta`).
    pub theta: f64,
    pub scaling: RopeScaling,
    /// Only so many elements at the start of each head are rotated, an even number; `None`: all.
    #[serde(default)]
    pub rotary_dim: Option<usize>,
}

/// How rope frequencies are changed for longer contexts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    None,
    /// All frequencies divided by `factor` (position interpolation).
    Linear {
        factor: f64,
    },
    /// LLaMA-3: low frequencies divided by `factor`, high kept, a smooth ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_positions: u32,
    },
    /// YaRN: as LLaMA-3 with a ramp over the index of the pair, and longer queries and keys.
    Yarn {
        factor: f64,
        original_max_positions: u32,
        /// [`YARN_BETA_FAST`] where a file says none.
        beta_fast: f64,
        /// [`YARN_BETA_SLOW`] where a file says none.
        beta_slow: f64,
        /// Of sines and cosines; [`yarn_attention_factor`] where a file says none.
        attention_factor: f64,
        /// The ends of the ramp are whole indices; the default of files.
        truncate: bool,
    },
    /// LongRoPE: each frequency divided by a factor of its own, one of two lists by the length.
    Longrope {
        /// `[rotary_dim / 2]`, up to the original length.
        short_factors: Vec<f64>,
        /// `[rotary_dim / 2]`, beyond it.
        long_factors: Vec<f64>,
        original_max_positions: u32,
        /// Of sines and cosines; [`longrope_attention_factor`] where a file says none.
        attention_factor: f64,
    },
    /// Dynamic NTK: a larger base beyond the original length.
    Dynamic {
        factor: f64,
        /// The model's `max_position_embeddings`.
        original_max_positions: u32,
    },
    /// Each frequency divided by a factor of its own, whatever the length: LLaMA-3's scaling as
    /// GGUF files keep it.
    Factors {
        /// `[rotary_dim / 2]`.
        factors: Vec<f64>,
    },
}

impl Rope {
    /// An embedding of whole heads.
    pub fn new(theta: f64, scaling: RopeScaling) -> Rope {
        Rope { theta, scaling, rotary_dim: None }
    }

    /// Positions that a model of so many is for with this embedding: where the scaling counts from
    /// an original length, that many times its factor if it is more.
    pub fn stretched(&self, max_positions: usize) -> usize {
        match self.scaling {
            RopeScaling::Yarn { factor, original_max_positions, .. }
            | RopeScaling::Dynamic { factor, original_max_positions } => {
                max_positions.max((f64::from(original_max_positions) * factor) as usize)
            }
            _ => max_positions,
        }
    }

    /// Elements of a head that are rotated, those at its start: pairs `(i, i + rotary_dim / 2)`.
    pub fn rotary_dim(&self, head_dim: usize) -> usize {
        self.rotary_dim.unwrap_or(head_dim)
    }

    /// Inverse frequencies `[rotary_dim / 2]`, in radians per position, scaling applied: those of a
    /// sequence that cannot pass the original length.
    ///
    /// # Panics
    /// Factors of a list are not `rotary_dim / 2`.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        self.inverse_frequencies_for(head_dim, SequenceLength(0))
    }

    /// As [`Rope::inverse_frequencies`], of a sequence of that most positions.
    ///
    /// # Panics
    /// Factors of a list are not `rotary_dim / 2`.
    pub fn inverse_frequencies_for(&self, head_dim: usize, length: SequenceLength) -> Vec<f32> {
        let mut frequencies = vec![0.0; self.rotary_dim(head_dim) / 2];
        self.fill_inverse_frequencies(head_dim, length, &mut frequencies);
        frequencies
    }

    /// Fills `out` with [`Rope::inverse_frequencies_for`].
    ///
    /// # Panics
    /// `out` is not `[rotary_dim / 2]`, nor are factors of a list.
    pub fn fill_inverse_frequencies(
        &self,
        head_dim: usize,
        length: SequenceLength,
        out: &mut [f32],
    ) {
        let dim = self.rotary_dim(head_dim);
        assert_eq!(out.len(), dim / 2, "a frequency for each pair");
        let theta = self.scaling.theta(self.theta, dim, length);
        for (i, out) in out.iter_mut().enumerate() {
            let frequency = theta.powf(-((2 * i) as f64) / dim as f64);
            *out = self.scaling.apply(frequency, i, (theta, dim), length) as f32;
        }
    }

    /// Whether the length of a sequence decides its frequencies.
    pub fn is_by_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Longrope { .. } | RopeScaling::Dynamic { .. })
    }

    /// Sequences of one class have the same frequencies. 0 is the class of all lengths that do not
    /// pass the original one; longrope has one further class, dynamic NTK one a length.
    pub fn frequency_class(&self, length: SequenceLength) -> u32 {
        match self.scaling {
            RopeScaling::Longrope { original_max_positions, .. } => {
                u32::from(length.0 > original_max_positions)
            }
            RopeScaling::Dynamic { original_max_positions, .. }
                if length.0 > original_max_positions =>
            {
                length.0
            }
            _ => 0,
        }
    }

    /// Factor of every sine and cosine; 1 where the scaling has none.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::Longrope { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        }
    }
}

/// YaRN's factor of sines and cosines where a file says none, from `mscale` and `mscale_all_dim`
/// if it has both.
pub fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let scaled = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
    match (mscale, mscale_all_dim) {
        // 0 counts as not said.
        (Some(one), Some(all)) if one != 0.0 && all != 0.0 => scaled(one) / scaled(all),
        _ => scaled(1.0),
    }
}

/// Longrope's factor of sines and cosines where a file says none. `factor` is that of the file, or
/// the model's positions divided by the original ones.
pub fn longrope_attention_factor(factor: f64, original_max_positions: u32) -> f64 {
    if factor <= 1.0 {
        return 1.0;
    }
    (1.0 + factor.ln() / f64::from(original_max_positions).ln()).sqrt()
}

impl RopeScaling {
    /// The base for texts of that length.
    fn theta(&self, theta: f64, dim: usize, length: SequenceLength) -> f64 {
        let RopeScaling::Dynamic { factor, original_max_positions } = *self else { return theta };
        let original = f64::from(original_max_positions);
        let stretched = factor * f64::from(length.0).max(original) / original - (factor - 1.0);
        theta * stretched.powf(dim as f64 / (dim as f64 - 2.0))
    }

    /// The frequency of pair `index` of `dim / 2`, which was `frequency` with base `theta`.
    fn apply(
        &self,
        frequency: f64,
        index: usize,
        (theta, dim): (f64, usize),
        length: SequenceLength,
    ) -> f64 {
        match self {
            RopeScaling::None | RopeScaling::Dynamic { .. } => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let wavelength = 2.0 * PI / frequency;
                let original = f64::from(*original_max_positions);
                if wavelength < original / high_freq_factor {
                    frequency
                } else if wavelength > original / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (original / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            RopeScaling::Yarn { factor, .. } => {
                let (low, high) = self.yarn_ramp(theta, dim);
                let interpolated = ((index as f64 - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * interpolated + frequency * (1.0 - interpolated)
            }
            RopeScaling::Longrope {
                short_factors, long_factors, original_max_positions, ..
            } => {
                let long = length.0 > *original_max_positions;
                let factors = if long { long_factors } else { short_factors };
                assert_eq!(factors.len(), dim / 2, "longrope has a factor per pair");
                frequency / factors[index]
            }
            RopeScaling::Factors { factors } => {
                assert_eq!(factors.len(), dim / 2, "a factor per pair");
                frequency / factors[index]
            }
        }
    }

    /// Indices of pairs between which YaRN goes from the kept frequency to the divided one.
    fn yarn_ramp(&self, theta: f64, dim: usize) -> (f64, f64) {
        let RopeScaling::Yarn { original_max_positions, beta_fast, beta_slow, truncate, .. } =
            *self
        else {
            return (0.0, 1.0);
        };
        // The pair that makes so many rotations within the original length.
        let pair_of = |rotations: f64| {
            let ratio = f64::from(original_max_positions) / (rotations * 2.0 * PI);
            dim as f64 * ratio.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        (low, high)
    }
}
