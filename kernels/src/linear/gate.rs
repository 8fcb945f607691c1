//! Functions of a gate and a value: the sums of the feed-forward's second matrix, multiplied by the
//! activated gate, and sums that are themselves gates.

use crate::simd::{Simd, math};

/// A function of gate and value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `silu(gate) * value`.
    Silu,
    /// `gelu(gate) * value`, with the tanh approximation of GELU.
    GeluTanh,
    /// `min(silu(gate), limit) * v`, where v is the value, clamped to `-limit..=limit`.
    LimitedSilu { limit: f32 },
    /// `silu(g) * v`, where g is the gate, at most `limit`, and v the value, clamped to
    /// `-limit..=limit`.
    SiluOfLimited { limit: f32 },
    /// `(v + 1) * g * sigmoid(alpha * g)`, where g is the gate, at most `limit`, and v the value,
    /// clamped to `-limit..=limit`.
    Clamped { alpha: f32, limit: f32 },
    /// `gate * silu(value)`: the value acts as the gate.
    BySilu,
    /// `gate * sigmoid(value)`.
    BySigmoid,
    /// `gate * gelu(value)`, with the tanh approximation of GELU.
    ByGeluTanh,
}

impl Gate {
    /// Applies the function to several vectors. NaN is propagated.
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
            Gate::ByGeluTanh => values = math::gelu_tanh(s, values),
            Gate::LimitedSilu { limit } => {
                let (low, high) = (s.splat(-limit), s.splat(limit));
                gates = math::silu(s, gates);
                for i in 0..N {
                    // If an operand is NaN, the result is the second operand.
                    gates[i] = s.min(high, gates[i]);
                    values[i] = s.max(low, s.min(high, values[i]));
                }
            }
            Gate::SiluOfLimited { limit } => {
                let (low, high) = (s.splat(-limit), s.splat(limit));
                for i in 0..N {
                    // If an operand is NaN, the result is the second operand.
                    gates[i] = s.min(high, gates[i]);
                    values[i] = s.max(low, s.min(high, values[i]));
                }
                gates = math::silu(s, gates);
            }
            Gate::Clamped { alpha, limit } => {
                let (low, high) = (s.splat(-limit), s.splat(limit));
                for i in 0..N {
                    // If an operand is NaN, the result is the second operand.
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
