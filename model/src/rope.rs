//! Rotary positions.

use serde::{Deserialize, Serialize};

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the geometric sequence of wavelengths (`rope_theta`).
    pub theta: f64,
    pub scaling: RopeScaling,
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
}

impl Rope {
    /// Inverse frequencies `[head_dim / 2]`, in radians per position, scaling applied.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        let half = head_dim / 2;
        (0..half)
            .map(|i| {
                let frequency = self.theta.powf(-((2 * i) as f64) / head_dim as f64);
                self.scaling.apply(frequency) as f32
            })
            .collect()
    }
}

impl RopeScaling {
    fn apply(&self, frequency: f64) -> f64 {
        match *self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                let original = f64::from(original_max_positions);
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
        }
    }
}
