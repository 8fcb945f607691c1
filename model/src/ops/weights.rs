//! Shape and layout of each operation's weights.

use super::op::{Kv, Op};
use crate::config::{Dtype, Family, Features, ModelConfig, QkNorm};
use crate::delta::DeltaNet;
use crate::experts::Experts;
use crate::mamba::Mamba;
use crate::quantized_format::{ROWS, WeightFormat};
use crate::short_conv::ShortConv;

/// Shape of an operation's weights: a row-major matrix, followed by vectors of f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightShape {
    /// Shape `[out, in]` of the matrix in the run's dtype; `None` for norms.
    pub matrix: Option<(usize, usize)>,
    /// The matrix is f32, whatever the run's dtype.
    pub is_f32: bool,
    /// Number of f32 in each vector: a linear's bias and the gain of the norm that follows it (q
    /// and k), a router's bias and what it adds to scores for the selection or multiplies weights
    /// by, or the experts of each token, a norm's gain and bias or, after a layer, the factor of
    /// the residual stream, the gains of two norms, the sinks of a softmax, a convolution `[taps,
    /// channels]` and its bias, or the bases and scales of mappings of streams.
    pub vectors: [Option<usize>; 2],
}

/// Byte layout of an operation's weights: a contiguous blob in which each part is aligned to 64
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLayout {
    pub matrix_bytes: usize,
    /// Offset of each vector in the blob.
    pub vector_offsets: [usize; 2],
    /// Size of the blob, a multiple of 64.
    pub size_bytes: usize,
}

/// Alignment of weights in bytes, so that a vector load never splits a cache line.
pub const WEIGHT_ALIGN: usize = 64;

/// Returns `bytes` rounded up to a multiple of [`WEIGHT_ALIGN`].
pub const fn align_up(bytes: usize) -> usize {
    bytes.div_ceil(WEIGHT_ALIGN) * WEIGHT_ALIGN
}

impl WeightShape {
    const fn new(matrix: Option<(usize, usize)>, vectors: [Option<usize>; 2]) -> WeightShape {
        WeightShape { matrix, is_f32: false, vectors }
    }

    /// Returns the type of a plain matrix in a run with `dtype`.
    pub const fn matrix_dtype(&self, dtype: Dtype) -> Dtype {
        if self.is_f32 { Dtype::F32 } else { dtype }
    }

    /// Returns the layout with the matrix in `format`, followed by the vectors. A plain matrix has
    /// the run's `dtype`.
    pub fn layout(&self, dtype: Dtype, format: WeightFormat) -> WeightLayout {
        let matrix_bytes = self.matrix.map_or(0, |(n, k)| match format {
            WeightFormat::Plain => n * k * self.matrix_dtype(dtype).size_bytes(),
            WeightFormat::Grouped(grouped) => grouped.size_bytes(n, k),
        });
        let first = align_up(matrix_bytes);
        let second = align_up(first + self.vectors[0].unwrap_or(0) * 4);
        let size_bytes = align_up(second + self.vectors[1].unwrap_or(0) * 4);
        WeightLayout { matrix_bytes, vector_offsets: [first, second], size_bytes }
    }
}

impl Op {
    /// Returns the shape of this operation's weights; `None` if it has none. The weights of all
    /// experts form one matrix and one vector, in which they are stored consecutively.
    pub fn weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let (hidden, ffn) = (config.hidden_size, config.ffn_size);
        let linear = |out: usize, input: usize, bias: bool| {
            Some(WeightShape::new(Some((out, input)), [bias.then_some(out), None]))
        };
        let gain = |count: usize| Some(WeightShape::new(None, [Some(count), None]));
        match self {
            Op::Embed | Op::Head => linear(config.vocab_size, hidden, false),
            Op::StreamMap0 | Op::StreamMap1 | Op::FinalNorm
                if config.features.streams.is_some() =>
            {
                self.stream_weights(config)
            }
            Op::StreamMap0 | Op::StreamMap1 | Op::StreamAdd0 | Op::StreamAdd1 => None,
            Op::Norm0 | Op::Norm1 if !config.pre_norms => None,
            Op::Norm0 | Op::Norm1 | Op::FinalNorm => {
                let bias = (config.family == Family::Opt).then_some(hidden);
                Some(WeightShape::new(None, [Some(hidden), bias]))
            }
            Op::PostNorm0 | Op::RouterNorm | Op::ExpertNorm | Op::SharedGate => gain(hidden),
            Op::SumNorm => Some(WeightShape::new(None, [Some(hidden), Some(hidden)])),
            Op::PostNorm1
            | Op::PerLayerEmbed
            | Op::PerLayerGate
            | Op::PerLayerOut
            | Op::PerLayerNorm => self.feature_weights(config),
            Op::Compress | Op::OutDown => self.unified_weights(config),
            Op::Q | Op::QDown | Op::K | Op::IndexQuery | Op::IndexWeights
                if config.features.unified_kv.is_some() =>
            {
                self.unified_weights(config)
            }
            Op::Q | Op::K if config.latent.is_some() => self.latent_weights(config),
            Op::QDown | Op::QAbsorb | Op::IndexQuery | Op::IndexWeights | Op::VUp => {
                self.latent_weights(config)
            }
            Op::Q | Op::K => Some(self.query_or_key_weights(config)),
            Op::V => linear(config.kv_size(), hidden, config.qkv_bias),
            Op::Softmax | Op::Attention if config.sinks => gain(config.num_heads),
            Op::Out => linear(hidden, config.out_input_size(), config.out_bias),
            Op::OutGate => linear(config.out_gate_size(), hidden, false),
            Op::DeltaQkv
            | Op::DeltaBa
            | Op::DeltaDecayDown
            | Op::DeltaDecay
            | Op::DeltaConv
            | Op::Delta
            | Op::DeltaGateDown
            | Op::DeltaGate
            | Op::DeltaOut => self.delta_weights(&config.delta?, hidden),
            Op::ConvIn | Op::ShortConv | Op::ConvOut => self.short_conv_weights(config),
            Op::MambaIn | Op::MambaConv | Op::Mamba | Op::MambaOut => {
                self.mamba_weights(config.mamba.as_ref()?, hidden)
            }
            Op::Gate | Op::Up | Op::Fc0 => linear(ffn, hidden, config.ffn_bias),
            Op::Down | Op::Fc1 => linear(hidden, ffn, config.ffn_bias),
            Op::DenseGate | Op::DenseUp => {
                linear(config.experts?.dense?.ffn_size, hidden, config.ffn_bias)
            }
            Op::DenseDown => linear(hidden, config.experts?.dense?.ffn_size, config.ffn_bias),
            Op::Router | Op::ExpertGate | Op::ExpertUp => self.expert_weights(config),
            Op::ExpertDown | Op::ExpertLatentDown | Op::ExpertLatentUp => {
                self.expert_weights(config)
            }
            Op::Select | Op::Scores | Op::Softmax | Op::Wv | Op::Attention => None,
            Op::ExpertCombine | Op::Unrotate | Op::Sample => None,
            Op::JoinHidden => self.feature_weights(config),
        }
    }

    /// Returns the shape of the linear of q or k, and of the norm that may follow it.
    fn query_or_key_weights(self, config: &ModelConfig) -> WeightShape {
        let width = if self == Op::Q { config.q_size() } else { config.kv_size() };
        let norm = config.qk_norm.map(|norm| match norm {
            QkNorm::PerHead => config.head_dim,
            QkNorm::FullWidth => width,
        });
        let bias = config.qkv_bias.then_some(width);
        WeightShape::new(Some((width, config.hidden_size)), [bias, norm])
    }

    /// Returns the shape of the weights of a layer with a short convolution, which has a vector
    /// `[taps, channels]`.
    fn short_conv_weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let hidden = config.hidden_size;
        let ShortConv { channels, taps } = config.short_conv()?;
        let linear = |out| WeightShape::new(Some((out, hidden)), [None; 2]);
        Some(match self {
            Op::ConvIn => linear(3 * hidden),
            Op::ShortConv => WeightShape::new(None, [Some(taps * channels), None]),
            _ => linear(hidden),
        })
    }

    /// Returns the shape of the weights of experts and their router.
    fn expert_weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let (hidden, row) = (config.hidden_size, config.expert_row_size());
        let Experts { count, per_token, ffn_size, bias, selection, has_factors, .. } =
            config.experts?;
        let second = match config.routes_by_token() {
            true => Some(config.vocab_size * per_token),
            false => (selection.bias || has_factors).then_some(count),
        };
        let linear =
            |out: usize, input| WeightShape::new(Some((out, input)), [bias.then_some(out), None]);
        Some(match self {
            Op::Router => WeightShape {
                matrix: Some((count, hidden)),
                is_f32: selection.is_f32,
                vectors: [bias.then_some(count), second],
            },
            Op::ExpertLatentDown => WeightShape::new(Some((row, hidden)), [None; 2]),
            Op::ExpertLatentUp => WeightShape::new(Some((hidden, row)), [None; 2]),
            Op::ExpertDown => linear(count * row, ffn_size),
            _ => linear(count * ffn_size, row),
        })
    }

    /// Returns the shape of the weights of operations with features of few models.
    fn feature_weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let hidden = config.hidden_size;
        let Features { layer_scale, per_layer_inputs, .. } = config.features;
        let linear = |out, input, gain| WeightShape::new(Some((out, input)), [None, gain]);
        Some(match (self, per_layer_inputs) {
            (Op::PostNorm1 | Op::PerLayerNorm, inputs) => {
                let is_last = (self == Op::PerLayerNorm) == inputs.is_some();
                WeightShape::new(None, [Some(hidden), (layer_scale && is_last).then_some(1)])
            }
            (Op::PerLayerEmbed, Some(inputs)) => {
                linear(inputs.row_elements(), hidden, Some(inputs.size))
            }
            (Op::PerLayerGate, Some(inputs)) => linear(inputs.size, hidden, None),
            (Op::PerLayerOut, Some(inputs)) => linear(hidden, inputs.size, None),
            // The gains of both norms are stored consecutively.
            (Op::JoinHidden, _) => linear(hidden, 2 * hidden, Some(2 * hidden)),
            _ => return None,
        })
    }

    /// Returns the shape of the weights of mappings of streams: a linear of all streams, whose
    /// results are multiplied by a scale of each mapping before a base of each result is added. The
    /// last norm has the base and the scale of its one mapping in a vector, and its gain.
    fn stream_weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let streams = config.features.streams?;
        let (width, count) = (config.residual_size(), streams.count);
        let (results, vectors) = match self {
            Op::FinalNorm => (count, [Some(count + 1), Some(config.hidden_size)]),
            _ => (streams.map_size(), [Some(streams.map_size()), Some(3)]),
        };
        Some(WeightShape { matrix: Some((results, width)), is_f32: true, vectors })
    }

    /// Returns the shape of the weights of attention with one KV head that is key and value. The
    /// matrices of all groups of `OutDown` are stored consecutively. Rows of values and gates that
    /// are compressed follow those of the key.
    fn unified_weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let unified = config.features.unified_kv?;
        let (hidden, queries) = (config.hidden_size, config.q_size());
        let linear = |out, input, gain| WeightShape::new(Some((out, input)), [None, gain]);
        Some(match self {
            Op::QDown => linear(unified.q_rank, hidden, Some(unified.q_rank)),
            Op::Q => linear(queries, unified.q_rank, None),
            Op::K => linear(config.cache_dim(Kv::K), hidden, Some(config.head_dim)),
            Op::IndexQuery => linear(config.entry_indexer()?.query_size(), unified.q_rank, None),
            Op::IndexWeights => linear(config.entry_indexer()?.heads, hidden, None),
            Op::Compress => {
                let (compression, entry) = (config.compression()?, config.cache_dim(Kv::V));
                let biases = compression.rate * compression.series() * entry;
                WeightShape::new(None, [Some(entry), Some(biases)])
            }
            _ => linear(unified.out_size(), queries / unified.out_groups, None),
        })
    }

    /// Returns the shape of the weights of latent attention. The matrices of all heads are stored
    /// consecutively: `[heads, kv_rank, nope_dim]` for keys, which is the transpose of what the
    /// latent would be multiplied by, and `[heads, value_dim, kv_rank]` for values. The rows of the
    /// indexer's key follow those of the latent.
    fn latent_weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let latent = config.latent.as_ref()?;
        let (hidden, heads) = (config.hidden_size, config.num_heads);
        let linear = |out, input, gain| WeightShape::new(Some((out, input)), [None, gain]);
        let indexer = config.own_indexer();
        Some(match (self, indexer) {
            (Op::K, Some(indexer)) => {
                let vector = Some(indexer.key_norm_size(latent));
                linear(indexer.place_dim(latent), hidden, vector)
            }
            (Op::IndexQuery, Some(indexer)) => linear(indexer.query_size(), latent.q_rank?, None),
            (Op::IndexWeights, Some(indexer)) => linear(indexer.heads, hidden, None),
            (Op::QDown, _) => linear(latent.q_rank?, hidden, latent.q_rank),
            (Op::Q, _) => linear(heads * latent.query_dim(), latent.q_rank.unwrap_or(hidden), None),
            (Op::QAbsorb, _) => linear(heads * latent.kv_rank, latent.nope_dim, None),
            (Op::K, None) => linear(latent.key_dim(), hidden, Some(latent.kv_rank)),
            (Op::VUp, _) => linear(heads * latent.value_dim, latent.kv_rank, None),
            _ => return None,
        })
    }

    /// Returns the shape of the weights of a layer with a state. The convolution has a vector
    /// `[taps, channels]`. The recurrence has the gain of a head's norm, and numbers: the
    /// logarithms of the decay rates `[value_heads]`, and the biases of a.
    fn delta_weights(self, delta: &DeltaNet, hidden: usize) -> Option<WeightShape> {
        let (heads, values) = (delta.value_heads, delta.value_size());
        let linear = |out, input| WeightShape::new(Some((out, input)), [None; 2]);
        let vectors = |first, second| WeightShape::new(None, [Some(first), second]);
        Some(match self {
            Op::DeltaQkv => linear(delta.channels(), hidden),
            Op::DeltaBa => linear(delta.rates_size(), hidden),
            Op::DeltaDecayDown | Op::DeltaGateDown => linear(delta.decay_rank()?, hidden),
            Op::DeltaDecay => linear(delta.decays_len(), delta.decay_rank()?),
            Op::DeltaConv => vectors(delta.taps * delta.channels(), None),
            Op::Delta => vectors(delta.value_dim, Some(heads + delta.decays_len())),
            Op::DeltaGate => linear(values, delta.decay_rank().unwrap_or(hidden)),
            Op::DeltaOut => linear(hidden, values),
            _ => return None,
        })
    }

    /// Returns the shape of the weights of a layer with Mamba2. The convolution has a vector
    /// `[taps, channels]` and possibly a bias. The recurrence has the gain of the norm after it,
    /// and `[3, heads]` numbers: the logarithms of the decay rates, the biases of dt, and the
    /// factors of x.
    fn mamba_weights(self, mamba: &Mamba, hidden: usize) -> Option<WeightShape> {
        let linear = |out, input| WeightShape::new(Some((out, input)), [None; 2]);
        let vectors = |first, second| WeightShape::new(None, [Some(first), second]);
        Some(match self {
            Op::MambaIn => linear(mamba.input_size(), hidden),
            Op::MambaConv => {
                vectors(mamba.taps * mamba.channels(), mamba.conv_bias.then_some(mamba.channels()))
            }
            Op::Mamba => vectors(mamba.inner_size(), Some(3 * mamba.heads)),
            Op::MambaOut => linear(hidden, mamba.inner_size()),
            _ => return None,
        })
    }

    /// Returns the number of bytes of this operation's uncompressed weight blob. The learned
    /// position table (OPT) is a separate blob.
    pub fn weight_bytes(self, config: &ModelConfig, dtype: Dtype) -> usize {
        self.weight_bytes_in(config, dtype, WeightFormat::Plain)
    }

    /// Returns the number of bytes of this operation's weight blob with its matrix in `format`.
    pub fn weight_bytes_in(
        self,
        config: &ModelConfig,
        dtype: Dtype,
        format: WeightFormat,
    ) -> usize {
        self.weights(config).map_or(0, |shape| shape.layout(dtype, format).size_bytes)
    }

    /// Returns true if kernels can read the matrix in a grouped format. Since the matrices of
    /// experts or heads are stored consecutively, each of them must consist of whole blocks of
    /// rows.
    pub fn can_be_grouped(self, config: &ModelConfig) -> bool {
        let rows = match (self, config.experts) {
            (Op::ExpertGate | Op::ExpertUp, Some(experts)) => experts.ffn_size,
            (Op::ExpertDown, Some(_)) => config.expert_row_size(),
            (Op::QAbsorb, _) => config.latent.map_or(0, |latent| latent.kv_rank),
            (Op::VUp, _) => config.latent.map_or(0, |latent| latent.value_dim),
            (Op::OutDown, _) => config.features.unified_kv.map_or(0, |unified| unified.out_rank),
            // Kept in f32.
            (Op::StreamMap0 | Op::StreamMap1, _) => return false,
            _ => return self.has_matrix(config),
        };
        rows.is_multiple_of(ROWS)
    }

    /// Returns true if the weights include a matrix.
    pub fn has_matrix(self, config: &ModelConfig) -> bool {
        self.weights(config).is_some_and(|shape| shape.matrix.is_some())
    }
}
