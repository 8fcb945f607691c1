//! Rotary position embedding: which elements of a head are rotated, and at which frequency.
//!
//! **Frequencies that depend on the length.** Two kinds of scaling, longrope and dynamic NTK, use
//! different frequencies for longer texts. A cached key keeps the rotation with which it was
//! stored, and a row must depend on nothing but its own sequence. Therefore the length that
//! determines the frequencies is declared when a sequence begins and never changes:
//! [`SequenceLength`], its prompt plus the maximum number of tokens that may follow. All rows of a
//! sequence, in prefill and decode, are then rotated with the same frequencies.
//!
//! In comparison, Hugging Face transformers uses the current length of the text (of the longest
//! sequence in the batch):
//! - For a text that cannot exceed the original length, the frequencies there are equal to those
//!   here at every step. With longrope, this also holds for a text whose prompt already exceeds it.
//! - A longrope text that exceeds the original length while it grows has the long factors here from
//!   its first token. There it has the short factors until it exceeds the length, when all keys are
//!   recomputed with the long ones.
//! - A dynamic NTK text that exceeds the length has here the frequencies that transformers uses in
//!   one forward pass over the whole declared length. There they change with each further token,
//!   and keys keep the frequencies of the step that cached them.

use std::f64::consts::PI;
use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

/// Default of YaRN's `beta_fast`: number of rotations within the original length above which a
/// frequency is kept.
pub const YARN_BETA_FAST: f64 = 32.0;
/// Default of YaRN's `beta_slow`: number of rotations within the original length below which a
/// frequency is divided by the full factor.
pub const YARN_BETA_SLOW: f64 = 1.0;

/// Maximum number of positions that a sequence can reach, declared when it begins: its prompt plus
/// the maximum number of tokens that may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceLength(pub u32);

/// Rotary position embedding.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the geometric sequence of wavelengths (`rope_theta`).
    pub theta: f64,
    pub scaling: RopeScaling,
    /// Number of elements at the start of each head that are rotated, an even number; `None` for
    /// all.
    #[serde(default)]
    pub rotary_dim: Option<usize>,
    /// Factor of rotated queries that depends on their position; `None` for none.
    #[serde(default)]
    pub temperature: Option<AttentionTemperature>,
}

/// Factor of queries that grows with their position, in all of their elements
/// (`llama_4_scaling_beta` in transformers).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AttentionTemperature {
    /// Factor of the logarithm.
    pub beta: f64,
    /// Number of consecutive positions with the same factor.
    pub interval: u32,
}

impl AttentionTemperature {
    /// Returns the factor of a query: `1 + beta * ln(1 + floor(position / interval))`.
    ///
    /// # Panics
    /// If the interval is 0.
    pub fn factor(self, position: u32) -> f32 {
        let interval = f64::from(position / self.interval);
        (1.0 + self.beta * interval.ln_1p()) as f32
    }
}

/// Prints `temperature` only if there is one, since keys of stored data are derived from this text:
/// a field that a model does not use must not change them.
impl Debug for Rope {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Rope { theta, scaling, rotary_dim, temperature } = self;
        let mut fields = f.debug_struct("Rope");
        fields.field("theta", theta).field("scaling", scaling).field("rotary_dim", rotary_dim);
        if let Some(temperature) = temperature {
            fields.field("temperature", temperature);
        }
        fields.finish()
    }
}

/// Scaling of rope frequencies for longer contexts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    None,
    /// All frequencies divided by `factor` (position interpolation).
    Linear {
        factor: f64,
    },
    /// LLaMA-3: low frequencies divided by `factor`, high frequencies kept, and a smooth ramp
    /// between them.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_positions: u32,
    },
    /// YaRN: similar to LLaMA-3, with a ramp over the index of the pair, and with scaled queries
    /// and keys.
    Yarn {
        factor: f64,
        original_max_positions: u32,
        /// [`YARN_BETA_FAST`] by default.
        beta_fast: f64,
        /// [`YARN_BETA_SLOW`] by default.
        beta_slow: f64,
        /// Factor of sines and cosines; [`yarn_attention_factor`] by default.
        attention_factor: f64,
        /// True if the ends of the ramp are rounded to whole indices, which is the default.
        truncate: bool,
    },
    /// LongRoPE: each frequency divided by its own factor, from one of two lists depending on the
    /// length.
    Longrope {
        /// Factors `[rotary_dim / 2]` up to the original length.
        short_factors: Vec<f64>,
        /// Factors `[rotary_dim / 2]` beyond the original length.
        long_factors: Vec<f64>,
        original_max_positions: u32,
        /// Factor of sines and cosines; [`longrope_attention_factor`] by default.
        attention_factor: f64,
    },
    /// Dynamic NTK: a larger base beyond the original length.
    Dynamic {
        factor: f64,
        /// `max_position_embeddings` of the model.
        original_max_positions: u32,
    },
    /// The first pairs are rotated at the frequencies of whole heads, and the others are not
    /// rotated (Gemma 4).
    Proportional {
        rotated_pairs: usize,
    },
    /// Each frequency divided by its own factor, regardless of the length: LLaMA-3's scaling as
    /// stored in GGUF files.
    Factors {
        /// Factors `[rotary_dim / 2]`.
        factors: Vec<f64>,
    },
}

impl Rope {
    /// Creates an embedding that rotates whole heads.
    pub fn new(theta: f64, scaling: RopeScaling) -> Rope {
        Rope { theta, scaling, rotary_dim: None, temperature: None }
    }

    /// Returns the number of positions that a model of `max_positions` positions supports with this
    /// embedding: if the scaling refers to an original length, that length times the factor if this
    /// is more.
    pub fn scaled_max_positions(&self, max_positions: usize) -> usize {
        match self.scaling {
            RopeScaling::Yarn { factor, original_max_positions, .. }
            | RopeScaling::Dynamic { factor, original_max_positions } => {
                max_positions.max((f64::from(original_max_positions) * factor) as usize)
            }
            _ => max_positions,
        }
    }

    /// Returns the number of elements at the start of a head that are rotated, as pairs `(i, i +
    /// rotary_dim / 2)`.
    pub fn rotary_dim(&self, head_dim: usize) -> usize {
        self.rotary_dim.unwrap_or(head_dim)
    }

    /// Returns the scaled inverse frequencies `[rotary_dim / 2]`, in radians per position, of a
    /// sequence that cannot exceed the original length.
    ///
    /// # Panics
    /// If a list of factors does not have `rotary_dim / 2` elements.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        self.inverse_frequencies_for(head_dim, SequenceLength(0))
    }

    /// Returns the inverse frequencies of a sequence of the given maximum length, as in
    /// [`Rope::inverse_frequencies`].
    ///
    /// # Panics
    /// If a list of factors does not have `rotary_dim / 2` elements.
    pub fn inverse_frequencies_for(&self, head_dim: usize, length: SequenceLength) -> Vec<f32> {
        let mut frequencies = vec![0.0; self.rotary_dim(head_dim) / 2];
        self.fill_inverse_frequencies(head_dim, length, &mut frequencies);
        frequencies
    }

    /// Fills `out` with [`Rope::inverse_frequencies_for`].
    ///
    /// # Panics
    /// If `out` or a list of factors does not have `rotary_dim / 2` elements.
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
            *out = self.scaling.apply(frequency, i, theta, dim, length) as f32;
        }
    }

    /// Returns true if the frequencies depend on the length of a sequence.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Longrope { .. } | RopeScaling::Dynamic { .. })
    }

    /// Returns the class of a length; lengths of one class have the same frequencies. Class 0
    /// contains all lengths that do not exceed the original one. Longrope has one further class,
    /// dynamic NTK one per length.
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

    /// Returns the factor of every sine and cosine; 1 for a scaling without one.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::Longrope { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        }
    }
}

/// Returns YaRN's default factor of sines and cosines, computed from `mscale` and `mscale_all_dim`
/// if both are given.
pub fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let scaled = |by: f64| yarn_scale(factor, by);
    match (mscale, mscale_all_dim) {
        // 0 counts as not given.
        (Some(one), Some(all)) if one != 0.0 && all != 0.0 => scaled(one) / scaled(all),
        _ => scaled(1.0),
    }
}

/// Returns YaRN's scale of a context that is extended by `factor`: `0.1 * by * ln(factor) + 1`.
pub fn yarn_scale(factor: f64, by: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 }
}

/// Returns longrope's default factor of sines and cosines. `factor` is the one in the file, or the
/// model's positions divided by the original ones.
pub fn longrope_attention_factor(factor: f64, original_max_positions: u32) -> f64 {
    if factor <= 1.0 {
        return 1.0;
    }
    (1.0 + factor.ln() / f64::from(original_max_positions).ln()).sqrt()
}

impl RopeScaling {
    /// Returns the base for texts of the given length.
    fn theta(&self, theta: f64, dim: usize, length: SequenceLength) -> f64 {
        let RopeScaling::Dynamic { factor, original_max_positions } = *self else { return theta };
        let original = f64::from(original_max_positions);
        let stretched = factor * f64::from(length.0).max(original) / original - (factor - 1.0);
        theta * stretched.powf(dim as f64 / (dim as f64 - 2.0))
    }

    /// Returns the scaled frequency of pair `index` out of `dim / 2`. `frequency` is the unscaled
    /// one with base `theta`.
    fn apply(
        &self,
        frequency: f64,
        index: usize,
        theta: f64,
        dim: usize,
        length: SequenceLength,
    ) -> f64 {
        match self {
            RopeScaling::None | RopeScaling::Dynamic { .. } => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Proportional { rotated_pairs } if index < *rotated_pairs => frequency,
            RopeScaling::Proportional { .. } => 0.0,
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

    /// Returns the pair indices between which YaRN interpolates from the original frequency to the
    /// divided one.
    fn yarn_ramp(&self, theta: f64, dim: usize) -> (f64, f64) {
        let RopeScaling::Yarn { original_max_positions, beta_fast, beta_slow, truncate, .. } =
            *self
        else {
            return (0.0, 1.0);
        };
        // Index of the pair that makes the given number of rotations within the original length.
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
