//! Values and caches that operations read and write.

use super::op::{Kv, Op};
use super::value::Value;
use crate::config::ModelConfig;
use crate::layers::CacheSharing;

/// The values with the keys and values of the current rows that a layer attends to.
#[derive(Clone, Copy)]
enum FreshKv {
    OfLayer,
    /// Those of the last layer that computes some and shares them.
    Shared,
    /// Like `Shared`, for layers with a window.
    SharedInWindow,
}

impl FreshKv {
    /// Returns the values of the layers of a model of one kind; see `ModelConfig::of_layer`.
    fn new(config: &ModelConfig) -> FreshKv {
        match config.layers.kinds() {
            [kind] if kind.caches != CacheSharing::Own => match kind.window {
                Some(_) => FreshKv::SharedInWindow,
                None => FreshKv::Shared,
            },
            _ => FreshKv::OfLayer,
        }
    }

    /// Returns the values that a part of attention reads, or the fused form.
    const fn reads(self, op: Op) -> &'static [Value] {
        match (self, op) {
            (FreshKv::OfLayer, Op::Scores) => &[Value::Query, Value::Key],
            (FreshKv::Shared, Op::Scores) => &[Value::Query, Value::SharedKey],
            (FreshKv::SharedInWindow, Op::Scores) => &[Value::Query, Value::WindowKey],
            (FreshKv::OfLayer, Op::Wv) => &[Value::Probabilities, Value::Value],
            (FreshKv::Shared, Op::Wv) => &[Value::Probabilities, Value::SharedValue],
            (FreshKv::SharedInWindow, Op::Wv) => &[Value::Probabilities, Value::WindowValue],
            (FreshKv::OfLayer, _) => &[Value::Query, Value::Key, Value::Value],
            (FreshKv::Shared, _) => &[Value::Query, Value::SharedKey, Value::SharedValue],
            (FreshKv::SharedInWindow, _) => &[Value::Query, Value::WindowKey, Value::WindowValue],
        }
    }

    const fn values(self) -> [Value; 2] {
        match self {
            FreshKv::OfLayer => [Value::Key, Value::Value],
            FreshKv::Shared => [Value::SharedKey, Value::SharedValue],
            FreshKv::SharedInWindow => [Value::WindowKey, Value::WindowValue],
        }
    }
}

impl Kv {
    /// Returns the value with the rows that a layer appends to this cache.
    pub fn fresh(self, config: &ModelConfig) -> Value {
        let [key, value] = FreshKv::new(config).values();
        match self {
            Kv::K => key,
            Kv::V if config.compression().is_some() => Value::Entry,
            Kv::V => value,
        }
    }
}

impl Op {
    /// Returns the values that are read, in the order of the operands in a program's instruction.
    /// Caches, weights and the step table are not included: the compiler adds them.
    pub fn reads(self, config: &ModelConfig) -> &'static [Value] {
        match self {
            op if op.is_of_experts() && config.has_parallel_experts() => op.parallel_reads(),
            op if config.features.streams.is_some() && op.is_of_streams() => op.stream_reads(),
            Op::Embed => &[],
            Op::Norm0 | Op::FinalNorm | Op::StreamMap0 | Op::StreamMap1 | Op::JoinHidden => {
                &[Value::Hidden]
            }
            Op::Q if config.query_rank().is_some() => &[Value::QueryLatent],
            Op::QDown | Op::Q | Op::K | Op::V | Op::IndexWeights => &[Value::Normed0],
            Op::IndexQuery => &[Value::QueryLatent],
            Op::Compress => &[Value::Key],
            op if op.is_attention() && config.compression().is_some() => op.entry_reads(config),
            Op::Select => &[Value::IndexQuery, Value::IndexWeights, Value::Key],
            Op::QAbsorb => &[Value::HeadQuery],
            Op::Softmax => &[Value::Scores],
            Op::Scores | Op::Attention if config.attends_to_selection() => {
                &[Value::Query, Value::Key, Value::Selection]
            }
            Op::Wv if config.attends_to_selection() => {
                &[Value::Probabilities, Value::Key, Value::Selection]
            }
            Op::Wv if config.has_single_cache() => &[Value::Probabilities, Value::Key],
            Op::Attention if config.has_single_cache() => &[Value::Query, Value::Key],
            Op::Scores | Op::Wv | Op::Attention => FreshKv::new(config).reads(self),
            Op::OutGate => &[Value::Normed0, Value::Attended],
            Op::VUp | Op::Unrotate => &[Value::Attended],
            Op::OutDown => &[Value::Unrotated],
            Op::StreamAdd0 => &[Value::Projected0, Value::StreamMap0, Value::Hidden],
            Op::StreamAdd1 => {
                &[Value::Projected1, Value::ExpertSum, Value::StreamMap1, Value::Hidden]
            }
            Op::Out if config.latent.is_some() => &[Value::HeadValues, Value::Hidden],
            Op::Out if config.output_gate => &[Value::GatedAttended, Value::Hidden],
            Op::Out if config.post_norms => &[Value::Attended],
            Op::Out => &[Value::Attended, Value::Hidden],
            Op::DeltaQkv
            | Op::DeltaBa
            | Op::DeltaDecayDown
            | Op::DeltaDecay
            | Op::DeltaConv
            | Op::Delta
            | Op::DeltaGateDown
            | Op::DeltaGate
            | Op::DeltaOut => self.state_reads(config),
            Op::ConvIn | Op::ShortConv | Op::ConvOut => self.state_reads(config),
            Op::MambaIn | Op::MambaConv | Op::Mamba | Op::MambaOut => self.state_reads(config),
            Op::PostNorm0 => &[Value::Projected0, Value::Hidden],
            Op::PostNorm1 => &[Value::Projected1, Value::Hidden],
            Op::Norm1 | Op::RouterNorm | Op::ExpertNorm | Op::PerLayerEmbed => &[Value::Hidden],
            Op::SumNorm => &[Value::Projected1, Value::ExpertSum],
            Op::PerLayerGate => &[Value::Hidden, Value::PerLayer],
            Op::PerLayerOut => &[Value::PerLayerGated],
            Op::PerLayerNorm => &[Value::Projected2, Value::Hidden],
            Op::Gate | Op::DenseGate | Op::Fc0 | Op::Router => &[Value::Normed1],
            Op::Up => &[Value::Normed1, Value::Gate],
            Op::DenseUp => &[Value::Normed1, Value::DenseGate],
            Op::SharedGate => &[Value::Normed1, Value::Ffn],
            Op::Down if config.has_shared_gate() => &[Value::SharedFfn, Value::Hidden],
            Op::DenseDown => &[Value::DenseFfn, Value::Hidden],
            Op::Down | Op::Fc1 if config.post_norms => &[Value::Ffn],
            Op::Down | Op::Fc1 => &[Value::Ffn, Value::Hidden],
            Op::ExpertGate | Op::ExpertUp | Op::ExpertDown => self.expert_reads(config),
            Op::ExpertCombine => self.expert_reads(config),
            Op::ExpertLatentDown | Op::ExpertLatentUp => self.expert_reads(config),
            Op::Head => &[Value::LastNormed],
            Op::Sample => &[Value::Logits],
        }
    }

    /// Returns the values that an operation of attention reads in a layer with entries.
    fn entry_reads(self, config: &ModelConfig) -> &'static [Value] {
        let selects = config.entry_indexer().is_some();
        match self {
            Op::Select => &[Value::IndexQuery, Value::IndexWeights, Value::Entry],
            Op::Softmax => &[Value::Scores],
            Op::Wv if selects => {
                &[Value::Probabilities, Value::Key, Value::Entry, Value::Selection]
            }
            Op::Wv => &[Value::Probabilities, Value::Key, Value::Entry],
            _ if selects => &[Value::Query, Value::Key, Value::Entry, Value::Selection],
            _ => &[Value::Query, Value::Key, Value::Entry],
        }
    }

    /// Returns the values that an operation of a layer with a state reads.
    fn state_reads(self, config: &ModelConfig) -> &'static [Value] {
        match self {
            Op::DeltaDecay => &[Value::DeltaDecayLatent],
            Op::DeltaConv => &[Value::DeltaQkv],
            Op::Delta if config.decays_by_channel() => {
                &[Value::DeltaConvolved, Value::DeltaBa, Value::DeltaDecay]
            }
            Op::Delta => &[Value::DeltaConvolved, Value::DeltaBa],
            Op::DeltaGate if config.decays_by_channel() => {
                &[Value::DeltaGateLatent, Value::DeltaRead]
            }
            Op::DeltaGate => &[Value::Normed0, Value::DeltaRead],
            Op::DeltaOut => &[Value::GatedDelta, Value::Hidden],
            Op::ShortConv => &[Value::ConvInput],
            Op::ConvOut => &[Value::Convolved, Value::Hidden],
            Op::MambaConv => &[Value::MambaInput],
            Op::Mamba => &[Value::MambaConvolved, Value::MambaInput],
            Op::MambaOut => &[Value::MambaRead, Value::Hidden],
            // Linears of the layer's input.
            _ => &[Value::Normed0],
        }
    }

    /// Returns the values that an operation of experts reads.
    fn expert_reads(self, config: &ModelConfig) -> &'static [Value] {
        let is_gated = config.activation.is_gated();
        match self {
            Op::ExpertLatentDown => &[Value::Normed1],
            Op::ExpertLatentUp => &[Value::ExpertSum, Value::Hidden],
            Op::ExpertUp if config.has_expert_latent() => &[Value::ExpertLatent, Value::Routing],
            Op::ExpertDown if config.has_expert_latent() => &[Value::ExpertFfn, Value::Routing],
            Op::ExpertCombine if config.has_expert_latent() => &[Value::ExpertOut, Value::Routing],
            Op::ExpertUp if is_gated => &[Value::Normed1, Value::Routing, Value::ExpertGate],
            Op::ExpertDown => &[Value::ExpertFfn, Value::Routing, Value::Hidden],
            Op::ExpertCombine => &[Value::ExpertOut, Value::Routing, Value::Hidden],
            // The first linear, whether it is a gate or not.
            _ => &[Value::Normed1, Value::Routing],
        }
    }

    /// Returns true for operations of layers with experts that read other values where the experts
    /// are next to a dense network.
    const fn is_of_experts(self) -> bool {
        self.is_expert() || matches!(self, Op::Router | Op::ExpertCombine | Op::PostNorm1)
    }

    /// Returns the values that such an operation reads.
    const fn parallel_reads(self) -> &'static [Value] {
        match self {
            Op::Router => &[Value::RouterNormed],
            Op::ExpertGate => &[Value::ExpertNormed, Value::Routing],
            Op::ExpertUp => &[Value::ExpertNormed, Value::Routing, Value::ExpertGate],
            Op::ExpertDown => &[Value::ExpertFfn, Value::Routing],
            Op::ExpertCombine => &[Value::ExpertOut, Value::Routing],
            _ => &[Value::NormedSum, Value::Hidden],
        }
    }

    /// Returns true for operations that read other values where the residual has streams.
    const fn is_of_streams(self) -> bool {
        matches!(self, Op::Norm0 | Op::Norm1 | Op::Out | Op::Down)
            || matches!(self, Op::ExpertDown | Op::ExpertCombine)
    }

    /// Returns the values that such an operation reads.
    const fn stream_reads(self) -> &'static [Value] {
        match self {
            Op::Norm0 => &[Value::Hidden, Value::StreamMap0],
            Op::Norm1 => &[Value::Hidden, Value::StreamMap1],
            Op::Out => &[Value::OutLatent],
            Op::Down => &[Value::Ffn],
            Op::ExpertDown => &[Value::ExpertFfn, Value::Routing],
            _ => &[Value::ExpertOut, Value::Routing],
        }
    }

    /// Returns the value that is written; `None` for `Sample`, which writes the step table.
    pub fn writes(self, config: &ModelConfig) -> Option<Value> {
        Some(match self {
            Op::Out if config.defers_residual() => Value::Projected0,
            Op::Down | Op::Fc1 if config.defers_residual() => Value::Projected1,
            Op::ExpertDown | Op::ExpertCombine if config.sums_experts() => Value::ExpertSum,
            Op::StreamMap0 => Value::StreamMap0,
            Op::StreamMap1 => Value::StreamMap1,
            Op::Unrotate => Value::Unrotated,
            Op::OutDown => Value::OutLatent,
            Op::ExpertLatentDown => Value::ExpertLatent,
            Op::RouterNorm => Value::RouterNormed,
            Op::ExpertNorm => Value::ExpertNormed,
            Op::SumNorm => Value::NormedSum,
            Op::PerLayerEmbed => Value::PerLayer,
            Op::PerLayerGate => Value::PerLayerGated,
            Op::PerLayerOut => Value::Projected2,
            Op::Embed
            | Op::JoinHidden
            | Op::Out
            | Op::PostNorm0
            | Op::Down
            | Op::DenseDown
            | Op::Fc1
            | Op::PostNorm1
            | Op::PerLayerNorm
            | Op::StreamAdd0
            | Op::StreamAdd1
            | Op::ExpertDown
            | Op::ExpertLatentUp
            | Op::ExpertCombine => Value::Hidden,
            Op::Norm0 => Value::Normed0,
            Op::QDown => Value::QueryLatent,
            Op::Q if config.latent.is_some() => Value::HeadQuery,
            Op::Q | Op::QAbsorb => Value::Query,
            Op::K => FreshKv::new(config).values()[0],
            Op::V => FreshKv::new(config).values()[1],
            Op::Scores => Value::Scores,
            Op::Softmax => Value::Probabilities,
            Op::Wv | Op::Attention => Value::Attended,
            Op::OutGate => Value::GatedAttended,
            Op::IndexQuery => Value::IndexQuery,
            Op::IndexWeights => Value::IndexWeights,
            Op::Select => Value::Selection,
            Op::Compress => Value::Entry,
            Op::VUp => Value::HeadValues,
            Op::DeltaQkv
            | Op::DeltaBa
            | Op::DeltaDecayDown
            | Op::DeltaDecay
            | Op::DeltaConv
            | Op::Delta
            | Op::DeltaGateDown
            | Op::DeltaGate
            | Op::DeltaOut => self.state_writes(),
            Op::ConvIn | Op::ShortConv | Op::ConvOut => self.state_writes(),
            Op::MambaIn | Op::MambaConv | Op::Mamba | Op::MambaOut => self.state_writes(),
            Op::Norm1 => Value::Normed1,
            Op::Gate => Value::Gate,
            Op::Up | Op::Fc0 => Value::Ffn,
            Op::DenseGate => Value::DenseGate,
            Op::DenseUp => Value::DenseFfn,
            Op::SharedGate => Value::SharedFfn,
            Op::Router => Value::Routing,
            Op::ExpertGate => Value::ExpertGate,
            Op::ExpertUp => Value::ExpertFfn,
            Op::FinalNorm => Value::LastNormed,
            Op::Head => Value::Logits,
            Op::Sample => return None,
        })
    }

    /// Returns the value that an operation of a layer with a state writes.
    const fn state_writes(self) -> Value {
        match self {
            Op::DeltaQkv => Value::DeltaQkv,
            Op::DeltaBa => Value::DeltaBa,
            Op::DeltaDecayDown => Value::DeltaDecayLatent,
            Op::DeltaDecay => Value::DeltaDecay,
            Op::DeltaGateDown => Value::DeltaGateLatent,
            Op::DeltaConv => Value::DeltaConvolved,
            Op::Delta => Value::DeltaRead,
            Op::DeltaGate => Value::GatedDelta,
            Op::ConvIn => Value::ConvInput,
            Op::ShortConv => Value::Convolved,
            Op::MambaIn => Value::MambaInput,
            Op::MambaConv => Value::MambaConvolved,
            Op::Mamba => Value::MambaRead,
            // The last linears add to the residual stream.
            _ => Value::Hidden,
        }
    }

    /// Returns true if the operation adds to the residual stream in place.
    pub fn adds_to_residual(self, config: &ModelConfig) -> bool {
        let reads_it = self.reads(config).contains(&Value::Hidden);
        let writes_it = self.writes(config) == Some(Value::Hidden);
        reads_it && writes_it && self != Op::JoinHidden
    }

    /// Returns the gate that the second linear of a gated network is multiplied by; `None` for
    /// other operations, and for experts.
    pub const fn gate_of_up(self) -> Option<Value> {
        match self {
            Op::Up => Some(Value::Gate),
            Op::DenseUp => Some(Value::DenseGate),
            _ => None,
        }
    }

    /// Returns the caches that are read: K for `Scores`, V for `Wv`, both for the fused form, K
    /// alone if values are the keys or a part of them, and both if these are in two caches. For
    /// operations that update a state, returns the cache that contains it.
    pub fn caches(self, config: &ModelConfig) -> &'static [Kv] {
        match self {
            Op::Scores | Op::Wv if config.compression().is_some() => &[Kv::K, Kv::V],
            Op::Attention if config.compression().is_some() => &[Kv::K, Kv::V],
            Op::Select if config.compression().is_some() => &[Kv::V],
            Op::Compress => &[Kv::K],
            Op::Wv | Op::Attention if config.has_single_cache() => &[Kv::K],
            Op::Select => &[Kv::K],
            Op::Scores | Op::DeltaConv | Op::ShortConv | Op::MambaConv => &[Kv::K],
            Op::Wv | Op::Delta | Op::Mamba => &[Kv::V],
            Op::Attention => &[Kv::K, Kv::V],
            _ => &[],
        }
    }

    /// Returns the operation of a layer's list that has the weights of this one, or that contains
    /// it.
    pub const fn weights_op(self) -> Op {
        match self {
            Op::Attention => Op::Softmax,
            Op::ExpertCombine => Op::ExpertDown,
            other => other,
        }
    }
}
