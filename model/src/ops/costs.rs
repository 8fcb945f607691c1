//! Costs of operations: FLOPs and bytes.

use super::op::{Kv, Op};
use super::value::Value;
use crate::config::{Dtype, ModelConfig};
use crate::layers::{LayerKind, TokenMixer};
use crate::state_slot::STATE_ELEMENT_BYTES;

impl Op {
    /// Returns the number of floating-point operations for `rows` rows that attend to
    /// `kv_positions` (row, position) pairs in total. A multiply-add counts as two.
    pub fn flops(self, config: &ModelConfig, rows: u64, kv_positions: u64) -> u64 {
        let pairs = kv_positions * config.num_heads as u64;
        match self {
            Op::Select => config.own_indexer().map_or(0, |indexer| {
                // Products, positive parts, and the sum over heads.
                let scored = kv_positions / config.cache_rate(Kv::V) as u64;
                scored * (2 * indexer.query_size() + 3 * indexer.heads) as u64
            }),
            Op::Scores | Op::Wv => 2 * pairs * config.attention_dim() as u64,
            Op::Softmax => 4 * pairs,
            Op::Attention => pairs * (4 * config.attention_dim() as u64 + 4),
            Op::Embed | Op::Sample => 0,
            Op::Norm0
            | Op::PostNorm0
            | Op::Norm1
            | Op::PostNorm1
            | Op::RouterNorm
            | Op::ExpertNorm
            | Op::PerLayerNorm
            | Op::FinalNorm => 4 * rows * config.hidden_size as u64,
            // Per stream, an addition of the output and a sum over streams.
            Op::StreamAdd0 | Op::StreamAdd1 => {
                2 * rows * ((config.stream_count() + 1) * config.residual_size()) as u64
            }
            // Bias, exponential, and two sums of each gate.
            Op::Compress => config.compression().map_or(0, |compression| {
                6 * rows * (compression.series() * config.cache_dim(Kv::V)) as u64
            }),
            // Two multiply-adds for each of a pair.
            Op::Unrotate => rows * 2 * config.q_size() as u64,
            Op::SumNorm => 9 * rows * config.hidden_size as u64,
            Op::SharedGate => rows * (2 * config.hidden_size + config.ffn_size) as u64,
            Op::DeltaConv => config
                .delta
                .map_or(0, |delta| rows * ((2 * delta.taps + 5) * delta.channels()) as u64),
            Op::ShortConv => config
                .short_conv()
                .map_or(0, |conv| rows * ((2 * conv.taps + 2) * conv.channels) as u64),
            // Decay, read at k, correction, and read at q.
            Op::Delta => config.delta.map_or(0, |delta| 7 * rows * delta.state_len() as u64),
            Op::MambaConv => config
                .mamba
                .map_or(0, |mamba| rows * ((2 * mamba.taps + 5) * mamba.channels()) as u64),
            // Decay, the product that is taken in, and read; gate and norm.
            Op::Mamba => config
                .mamba
                .map_or(0, |mamba| rows * (5 * mamba.state_len() + 10 * mamba.inner_size()) as u64),
            Op::ExpertGate | Op::ExpertUp | Op::ExpertDown => config.experts.map_or(0, |experts| {
                let one = experts.ffn_size * config.expert_row_size() * experts.per_token;
                2 * rows * one as u64
            }),
            Op::ExpertCombine => config.experts.map_or(0, |experts| {
                2 * rows * (experts.per_token * config.expert_row_size()) as u64
            }),
            _ => self
                .weights(config)
                .and_then(|shape| shape.matrix)
                .map_or(0, |(n, k)| 2 * rows * n as u64 * k as u64),
        }
    }

    /// Returns the number of bytes of a sequence's state that are read, which is also the number of
    /// bytes that are written; 0 for operations without a state.
    pub fn state_bytes(self, config: &ModelConfig) -> u64 {
        self.slot_bytes(config, 0) as u64
    }

    /// Returns the number of bytes of a sequence's slot in the operation's state, which has space
    /// for the rows of drafts; 0 for operations without a state.
    pub fn slot_bytes(self, config: &ModelConfig, draft_positions: usize) -> usize {
        let len = match self {
            Op::MambaConv => config.mamba.map(|mamba| mamba.inputs_len(draft_positions)),
            Op::Mamba => config.mamba.map(|mamba| mamba.slot_len(draft_positions)),
            Op::DeltaConv => config.delta.map(|delta| delta.inputs_len(draft_positions)),
            Op::Delta => config.delta.map(|delta| delta.slot_len(draft_positions)),
            Op::ShortConv => config.short_conv().map(|conv| conv.inputs_len(draft_positions)),
            _ => None,
        };
        len.unwrap_or(0) * STATE_ELEMENT_BYTES
    }

    /// Returns the number of bytes of cache read for `cached_positions` cached positions over all
    /// sequences.
    pub fn kv_bytes(self, config: &ModelConfig, dtype: Dtype, cached_positions: u64) -> u64 {
        if self.updates_state() {
            return 0;
        }
        let of_cache = |kv: &Kv| {
            let one = (config.cache_size(*kv) * dtype.size_bytes()) as u64;
            one * (cached_positions / config.cache_rate(*kv) as u64)
        };
        self.caches(config).iter().map(of_cache).sum()
    }

    /// Returns the number of bytes of activations read and written for `rows` rows, excluding
    /// attention scores, which depend on the KV length.
    pub fn activation_bytes(self, config: &ModelConfig, dtype: Dtype, rows: u64) -> u64 {
        let bytes = |value: Value| {
            value.row_elements(config).unwrap_or(0) as u64 * value.element_bytes(dtype) as u64
        };
        let read: u64 = self.reads(config).iter().map(|value| bytes(*value)).sum();
        rows * (read + self.writes(config).map_or(0, bytes))
    }

    /// Returns the number of bytes of scores and probabilities read and written for `pairs` (row,
    /// position) pairs if attention is not fused into one operation.
    pub fn score_bytes(self, config: &ModelConfig, dtype: Dtype, pairs: u64) -> u64 {
        let passes = match self {
            Op::Scores | Op::Wv => 1,
            Op::Softmax => 2,
            _ => 0,
        };
        passes * pairs * (config.num_heads * Value::Scores.element_bytes(dtype)) as u64
    }

    /// Returns the maximum relative error (infinity norm divided by the row's root mean square) of
    /// a kernel variant compared with the scalar reference with f32 accumulation.
    pub const fn tolerance(self, dtype: Dtype) -> f32 {
        match (self, dtype) {
            (Op::Embed | Op::Sample, _) => 0.0,
            (_, Dtype::F32) => 2e-5,
            // One bf16 rounding step of the result, plus a small margin for the order of sums.
            (_, Dtype::Bf16) => 1.2e-2,
        }
    }
}

impl ModelConfig {
    /// Returns the number of bytes of a sequence's slot that a layer of this kind keeps in place of
    /// a cache; `None` if it keeps a cache.
    pub fn state_bytes(&self, kind: &LayerKind, kv: Kv) -> Option<usize> {
        let ops = match kind.mixing {
            TokenMixer::Attention => return None,
            TokenMixer::Delta => &[Op::DeltaConv, Op::Delta][..],
            TokenMixer::ShortConv { .. } => &[Op::ShortConv],
            TokenMixer::Mamba => &[Op::MambaConv, Op::Mamba],
        };
        let updating = ops.iter().filter(|op| op.caches(self).contains(&kv));
        Some(updating.map(|op| op.slot_bytes(self, kind.draft_positions)).sum())
    }
}
