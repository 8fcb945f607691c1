//! LIA (ISCA '25): assigns the six sublayers of a decoder layer to the CPU or the GPU by roofline
//! costs, for prefill and decode separately; all 64 vectors are priced.
//!
//! `p_i = 1` means CPU, as in LIA's text and in every policy that it names. Eqs. 5, 8 and 9 are
//! printed with the opposite meaning; here a parameter or KV operand is loaded over the link if the
//! sublayer runs on the GPU, computation uses the rates of the device on which it runs, and fresh K
//! and V are stored to the host if QKV ran on the GPU. Eq. 2 sums up the parts without overlap.

mod latency;
mod ranges;
mod sublayer;
#[cfg(test)]
mod tests;

pub use latency::{LatencyParts, latency_ms, latency_parts};
pub use ranges::{BatchRange, batch_ranges};
pub(crate) use sublayer::sublayer_of;
pub use sublayer::{SUBLAYERS, Sublayer, sublayers};

use std::fmt;

use model::config::{Dtype, ModelConfig};
use serde::{Serialize, Serializer};

use crate::machine::{Machine, MachineError};

/// Relative latency difference below which a vector without a name is not preferred. At the
/// boundary between two of LIA's policies, eqs. 4, 6 and 9 make several vectors equal except for
/// the small traffic of activations in eq. 8 (at the decode threshold the CPU may as well keep
/// QKV). Such a difference is not significant (LIA §7 gives the equations an error of 12%), and a
/// run should not change its map for it.
pub const NAMED_MARGIN: f64 = 1e-3;

/// Stage of inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiaStage {
    /// All `length` tokens of every sequence.
    Prefill,
    /// One token per sequence, with a cache of `length` positions.
    Decode,
}

/// The offload vector `p`: for QKV mapping, Q x K^T, S x V, output projection, FC1 and FC2, true if
/// the CPU computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffloadVector(pub [bool; SUBLAYERS]);

impl OffloadVector {
    /// "Full CPU Offloading" (LIA §7.1).
    pub const FULL_CPU: OffloadVector = OffloadVector([true; SUBLAYERS]);
    /// "Full GPU Compute".
    pub const FULL_GPU: OffloadVector = OffloadVector([false; SUBLAYERS]);
    /// "Partial CPU Offloading": attention on the CPU.
    pub const PARTIAL_CPU: OffloadVector = OffloadVector([false, true, true, false, false, false]);

    /// Attention and experts on the CPU, QKV and the output projection on the GPU: what LIA §7.1
    /// expects for mixtures of experts.
    pub const EXPERTS_ON_CPU: OffloadVector = OffloadVector([false, true, true, false, true, true]);

    /// The three primary policies.
    pub const NAMED: [OffloadVector; 3] =
        [OffloadVector::FULL_CPU, OffloadVector::FULL_GPU, OffloadVector::PARTIAL_CPU];

    /// Returns all 64 vectors.
    pub fn all() -> impl Iterator<Item = OffloadVector> {
        (0u32..1 << SUBLAYERS)
            .map(|bits| OffloadVector(std::array::from_fn(|i| bits >> i & 1 == 1)))
    }
}

impl fmt::Display for OffloadVector {
    /// Formats as `(p1,p2,p3,p4,p5,p6)`, 1 for CPU.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.map(|on_cpu| if on_cpu { "1" } else { "0" });
        write!(f, "({})", bits.join(","))
    }
}

impl Serialize for OffloadVector {
    /// Serialises as `[p1..p6]`, 1 for CPU.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.map(u8::from).serialize(serializer)
    }
}

/// Parameters of the equations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LiaWorkload {
    /// Number of sequences, B.
    pub batch: u32,
    /// Number of tokens, L: of the prompt in prefill, cached in decode.
    pub length: u32,
    pub dtype: Dtype,
    /// The layer's parameters stay in device memory (LIA §5.2, optimisation 1).
    pub resident: bool,
}

/// Returns all vectors with their latencies in ms, in ascending order; equal ones in the order of
/// [`OffloadVector::all`].
///
/// # Errors
/// A number format that the description does not have.
pub fn rank_vectors(
    machine: &Machine,
    config: &ModelConfig,
    stage: LiaStage,
    workload: &LiaWorkload,
) -> Result<Vec<(OffloadVector, f64)>, MachineError> {
    let mut found = OffloadVector::all()
        .map(|vector| Ok((vector, latency_ms(machine, config, stage, workload, vector)?)))
        .collect::<Result<Vec<_>, MachineError>>()?;
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(found)
}

/// Returns the vector to use and its latency in ms: the minimum over all 64, except that the best
/// of the three that LIA names is kept if it is within [`NAMED_MARGIN`] of it.
///
/// # Errors
/// A number format that the description does not have.
pub fn best_vector(
    machine: &Machine,
    config: &ModelConfig,
    stage: LiaStage,
    workload: &LiaWorkload,
) -> Result<(OffloadVector, f64), MachineError> {
    let ranking = rank_vectors(machine, config, stage, workload)?;
    let named = ranking.iter().find(|(vector, _)| OffloadVector::NAMED.contains(vector));
    Ok(match named {
        Some(named) if named.1 <= ranking[0].1 * (1.0 + NAMED_MARGIN) => *named,
        _ => ranking[0],
    })
}
