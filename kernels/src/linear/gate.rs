//! What a finished sum of the feed-forward's second matrix makes of its gate, and what one that is
//! a gate itself makes of what it stands before.

use crate::simd::{Simd, math};

/// A function of gate and value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `silu(gate) * value`.
    Silu,
    /// `gelu(gate) * value`, GELU by tanh.
    GeluTanh,
    /// `(v + 1) * g * sigmoid(alpha * g)`, where g is the gate up to `limit`, v the value within
    /// `-limit..=limit`.
    Clamped { alpha: f32, limit: f32 },
    /// `gate * silu(value)`: the value is the gate.
    BySilu,
    /// `gate * sigmoid(value)`.
    BySigmoid,
}

impl Gate {
    /// The function of several vectors. NaN shows.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "vectors are surer to be kept in registers by index"
    )]
    pub(super) fn apply<S: Simd, const N: usize>(
        self,
        s: S,
        mut gates: [S::F; N],
        mut values: [S::F; N],
    ) -> [S::F; N] {
        match self {
            Gate::Silu => gates = math::silu(s, gates),
            Gate::GeluTanh => gates = math::gelu_tanh(s, gates),
            Gate::BySilu => values = math::silu(s, values),
            Gate::BySigmoid => values = math::sigmoid(s, values),
            Gate::Clamped { alpha, limit } => {
                let (low, high) = (s.splat(-limit), s.splat(limit));
                for i in 0..N {
                    // The second operand is the result where one is NaN.
                    gates[i] = s.min(high, gates[i]);
                    values[i] = s.max(low, s.min(high, values[i]));
                    values[i] = s.add(values[i], s.splat(1.0));
                }
                gates = math::times_sigmoid(s, gates, s.splat(alpha));
            }
        }
        for i in 0..N {
            values[i] = s.mul(gates[i], values[i]);
        }
        values
    }
}
