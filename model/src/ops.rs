//! The one table of operations: a decoder layer as an ordered list, what each operation reads and
//! writes, its weights, FLOPs and bytes. Planner, compiler, workers, tests and benches use this
//! table and no other.

use serde::{Deserialize, Serialize};

use crate::compressed::WeightFormat;
use crate::config::{Activation, Dtype, Family, ModelConfig};

/// An operation of a decoder layer, or one of the four around the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Op {
    /// Token (and learned position) embedding: tokens to the residual stream.
    Embed,
    Norm0,
    Q,
    K,
    V,
    Scores,
    Softmax,
    Wv,
    /// `Scores`, `Softmax` and `Wv` in one pass; bit-equal to the three.
    Attention,
    Out,
    Norm1,
    Gate,
    Up,
    Down,
    Fc0,
    Fc1,
    /// Norm of the last row of each sequence.
    FinalNorm,
    Head,
    /// Logits to tokens; writes the step table.
    Sample,
}

/// What flows between operations. Every value has one type in memory ([`Value::element`]) and is
/// rounded to it whether or not it crosses a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Value {
    /// Residual stream `[rows, hidden]`, updated in place by `Out` and `Down`/`Fc1`.
    Hidden,
    /// `[rows, hidden]`, input of q, k, v.
    Normed0,
    /// `[rows, heads * head_dim]`.
    Query,
    /// Fresh keys `[rows, kv_heads * head_dim]`.
    Key,
    /// Fresh values `[rows, kv_heads * head_dim]`.
    Value,
    /// `[unit, row, group, positions]`; a unit is a (sequence, KV head).
    Scores,
    /// Softmax of `Scores`, same layout.
    Probabilities,
    /// `[rows, heads * head_dim]`.
    Attended,
    /// `[rows, hidden]`, input of the feed-forward network.
    Normed1,
    /// `[rows, ffn]`, before the activation (LLaMA family).
    Gate,
    /// `[rows, ffn]`, input of `Down`/`Fc1`.
    Ffn,
    /// `[sequences, hidden]`: the last row of each sequence, normed.
    LastNormed,
    /// `[sequences, vocab]`.
    Logits,
}

/// Element type of a value in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// The run's `--dtype`.
    Compute,
    F32,
}

impl Value {
    /// The one type this value has in memory.
    pub const fn element(self) -> Element {
        match self {
            Value::Hidden | Value::Scores | Value::Probabilities | Value::Logits => Element::F32,
            _ => Element::Compute,
        }
    }

    /// Bytes of one element under `dtype`.
    pub const fn element_bytes(self, dtype: Dtype) -> usize {
        match self.element() {
            Element::Compute => dtype.size_bytes(),
            Element::F32 => 4,
        }
    }

    /// Elements of one row, for the values that are rows; `None` for `Scores` and `Probabilities`,
    /// whose size depends on the KV length.
    pub fn row_elements(self, config: &ModelConfig) -> Option<usize> {
        match self {
            Value::Hidden | Value::Normed0 | Value::Normed1 | Value::LastNormed => {
                Some(config.hidden_size)
            }
            Value::Query | Value::Attended => Some(config.q_size()),
            Value::Key | Value::Value => Some(config.kv_size()),
            Value::Gate | Value::Ffn => Some(config.ffn_size),
            Value::Logits => Some(config.vocab_size),
            Value::Scores | Value::Probabilities => None,
        }
    }
}

/// Which of the two caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kv {
    K,
    V,
}

/// Shape of an operation's weights: a row-major matrix, vectors of f32 behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightShape {
    /// `[out, in]` in the run's dtype; `None` for norms.
    pub matrix: Option<(usize, usize)>,
    /// Number of f32 in each vector: a bias, a norm's gain, a norm's gain and bias.
    pub vectors: [Option<usize>; 2],
}

/// Byte layout of an operation's weights: one contiguous blob, each part on a 64-byte boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLayout {
    pub matrix_bytes: usize,
    /// Offset of each vector in the blob.
    pub vector_offsets: [usize; 2],
    /// Whole blob, a multiple of 64.
    pub size_bytes: usize,
}

/// Weights start on such boundaries, so that a vector load never splits a cache line.
pub const WEIGHT_ALIGN: usize = 64;

/// `bytes` rounded up to [`WEIGHT_ALIGN`].
pub const fn align_up(bytes: usize) -> usize {
    bytes.div_ceil(WEIGHT_ALIGN) * WEIGHT_ALIGN
}

impl WeightShape {
    /// Places matrix and vectors behind each other: the matrix in `format`, which is the run's
    /// `dtype` where it is plain.
    pub fn layout(&self, dtype: Dtype, format: WeightFormat) -> WeightLayout {
        let matrix_bytes = self.matrix.map_or(0, |(n, k)| match format {
            WeightFormat::Plain => n * k * dtype.size_bytes(),
            WeightFormat::Grouped(grouped) => grouped.size_bytes(n, k),
        });
        let first = align_up(matrix_bytes);
        let second = align_up(first + self.vectors[0].unwrap_or(0) * 4);
        let size_bytes = align_up(second + self.vectors[1].unwrap_or(0) * 4);
        WeightLayout { matrix_bytes, vector_offsets: [first, second], size_bytes }
    }
}

const OPT_LAYER: [Op; 11] = [
    Op::Norm0,
    Op::Q,
    Op::K,
    Op::V,
    Op::Scores,
    Op::Softmax,
    Op::Wv,
    Op::Out,
    Op::Norm1,
    Op::Fc0,
    Op::Fc1,
];

const LLAMA_LAYER: [Op; 12] = [
    Op::Norm0,
    Op::Q,
    Op::K,
    Op::V,
    Op::Scores,
    Op::Softmax,
    Op::Wv,
    Op::Out,
    Op::Norm1,
    Op::Gate,
    Op::Up,
    Op::Down,
];

impl ModelConfig {
    /// The operations of a decoder layer, in order.
    pub fn layer_ops(&self) -> &'static [Op] {
        match self.family {
            Family::Opt => &OPT_LAYER,
            Family::Llama | Family::Mistral | Family::Qwen2 => &LLAMA_LAYER,
        }
    }

    /// Largest weight blob of any operation inside a layer, bytes.
    pub fn layer_weight_bytes(&self, dtype: Dtype) -> usize {
        self.layer_ops().iter().map(|op| op.weight_bytes(self, dtype)).sum()
    }
}

impl Op {
    /// Name on the command line, in traces and in reports: `ln0` for OPT, `norm0` for the others.
    pub fn name(self, family: Family) -> &'static str {
        let opt = family == Family::Opt;
        match self {
            Op::Embed => "embed",
            Op::Norm0 if opt => "ln0",
            Op::Norm0 => "norm0",
            Op::Q => "q",
            Op::K => "k",
            Op::V => "v",
            Op::Scores => "scores",
            Op::Softmax => "softmax",
            Op::Wv => "wv",
            Op::Attention => "attention",
            Op::Out => "out",
            Op::Norm1 if opt => "ln1",
            Op::Norm1 => "norm1",
            Op::Gate => "gate",
            Op::Up => "up",
            Op::Down => "down",
            Op::Fc0 => "fc0",
            Op::Fc1 => "fc1",
            Op::FinalNorm => "final_norm",
            Op::Head => "head",
            Op::Sample => "sample",
        }
    }

    /// `Scores`, `Softmax`, `Wv` or the fused form: split by units, not by rows.
    pub const fn is_attention(self) -> bool {
        matches!(self, Op::Scores | Op::Softmax | Op::Wv | Op::Attention)
    }

    /// Values read, in the order in which a program's instruction lists them.
    /// Caches, weights and the step table are listed by the compiler, not here.
    pub const fn reads(self) -> &'static [Value] {
        match self {
            Op::Embed => &[],
            Op::Norm0 => &[Value::Hidden],
            Op::Q | Op::K | Op::V => &[Value::Normed0],
            Op::Scores => &[Value::Query, Value::Key],
            Op::Softmax => &[Value::Scores],
            Op::Wv => &[Value::Probabilities, Value::Value],
            Op::Attention => &[Value::Query, Value::Key, Value::Value],
            Op::Out => &[Value::Attended, Value::Hidden],
            Op::Norm1 => &[Value::Hidden],
            Op::Gate | Op::Fc0 => &[Value::Normed1],
            Op::Up => &[Value::Normed1, Value::Gate],
            Op::Down | Op::Fc1 => &[Value::Ffn, Value::Hidden],
            Op::FinalNorm => &[Value::Hidden],
            Op::Head => &[Value::LastNormed],
            Op::Sample => &[Value::Logits],
        }
    }

    /// The value written; `None` for `Sample`, which writes the step table.
    pub const fn writes(self) -> Option<Value> {
        Some(match self {
            Op::Embed | Op::Out | Op::Down | Op::Fc1 => Value::Hidden,
            Op::Norm0 => Value::Normed0,
            Op::Q => Value::Query,
            Op::K => Value::Key,
            Op::V => Value::Value,
            Op::Scores => Value::Scores,
            Op::Softmax => Value::Probabilities,
            Op::Wv | Op::Attention => Value::Attended,
            Op::Norm1 => Value::Normed1,
            Op::Gate => Value::Gate,
            Op::Up | Op::Fc0 => Value::Ffn,
            Op::FinalNorm => Value::LastNormed,
            Op::Head => Value::Logits,
            Op::Sample => return None,
        })
    }

    /// Caches read: `Scores` reads K, `Wv` reads V, the fused form both.
    pub const fn caches(self) -> &'static [Kv] {
        match self {
            Op::Scores => &[Kv::K],
            Op::Wv => &[Kv::V],
            Op::Attention => &[Kv::K, Kv::V],
            _ => &[],
        }
    }

    /// Shape of this operation's weights; `None` when it has none.
    pub fn weights(self, config: &ModelConfig) -> Option<WeightShape> {
        let (hidden, ffn) = (config.hidden_size, config.ffn_size);
        let linear = |out: usize, input: usize, bias: bool| {
            Some(WeightShape { matrix: Some((out, input)), vectors: [bias.then_some(out), None] })
        };
        match self {
            Op::Embed | Op::Head => linear(config.vocab_size, hidden, false),
            Op::Norm0 | Op::Norm1 | Op::FinalNorm => Some(WeightShape {
                matrix: None,
                vectors: [Some(hidden), (config.family == Family::Opt).then_some(hidden)],
            }),
            Op::Q => linear(config.q_size(), hidden, config.qkv_bias),
            Op::K | Op::V => linear(config.kv_size(), hidden, config.qkv_bias),
            Op::Out => linear(hidden, config.q_size(), config.out_bias),
            Op::Gate | Op::Up | Op::Fc0 => linear(ffn, hidden, config.ffn_bias),
            Op::Down | Op::Fc1 => linear(hidden, ffn, config.ffn_bias),
            Op::Scores | Op::Softmax | Op::Wv | Op::Attention | Op::Sample => None,
        }
    }

    /// Bytes of this operation's weight blob, uncompressed. The learned position table (OPT) is a
    /// blob of its own.
    pub fn weight_bytes(self, config: &ModelConfig, dtype: Dtype) -> usize {
        self.weight_bytes_in(config, dtype, WeightFormat::Plain)
    }

    /// Bytes of this operation's weight blob with its matrix in `format`.
    pub fn weight_bytes_in(
        self,
        config: &ModelConfig,
        dtype: Dtype,
        format: WeightFormat,
    ) -> usize {
        self.weights(config).map_or(0, |shape| shape.layout(dtype, format).size_bytes)
    }

    /// Floating-point operations for `rows` rows that look at `kv_positions` (row, position) pairs
    /// in all. A multiply-add counts two.
    pub fn flops(self, config: &ModelConfig, rows: u64, kv_positions: u64) -> u64 {
        let pairs = kv_positions * config.num_heads as u64;
        match self {
            Op::Scores | Op::Wv => 2 * pairs * config.head_dim as u64,
            Op::Softmax => 4 * pairs,
            Op::Attention => pairs * (4 * config.head_dim as u64 + 4),
            Op::Embed | Op::Sample => 0,
            Op::Norm0 | Op::Norm1 | Op::FinalNorm => 4 * rows * config.hidden_size as u64,
            _ => self
                .weights(config)
                .and_then(|shape| shape.matrix)
                .map_or(0, |(n, k)| 2 * rows * n as u64 * k as u64),
        }
    }

    /// Bytes of cache read for `cached_positions` cached positions over all sequences.
    pub fn kv_bytes(self, config: &ModelConfig, dtype: Dtype, cached_positions: u64) -> u64 {
        let one = (config.kv_size() * dtype.size_bytes()) as u64;
        self.caches().len() as u64 * one * cached_positions
    }

    /// Bytes of activations read and written for `rows` rows; attention scores, which depend on the
    /// KV length, are not counted.
    pub fn activation_bytes(self, config: &ModelConfig, dtype: Dtype, rows: u64) -> u64 {
        let bytes = |value: Value| {
            value.row_elements(config).unwrap_or(0) as u64 * value.element_bytes(dtype) as u64
        };
        let read: u64 = self.reads().iter().map(|value| bytes(*value)).sum();
        rows * (read + self.writes().map_or(0, bytes))
    }

    /// Whether its weights are more than a few vectors.
    pub fn has_matrix(self, config: &ModelConfig) -> bool {
        self.weights(config).is_some_and(|shape| shape.matrix.is_some())
    }

    /// Bytes of scores and probabilities read and written for `pairs` (row, position) pairs, where
    /// attention is not one operation.
    pub fn score_bytes(self, config: &ModelConfig, dtype: Dtype, pairs: u64) -> u64 {
        let passes = match self {
            Op::Scores | Op::Wv => 1,
            Op::Softmax => 2,
            _ => 0,
        };
        passes * pairs * (config.num_heads * Value::Scores.element_bytes(dtype)) as u64
    }

    /// Largest relative error (infinity norm over the row's root mean square) that a kernel variant
    /// may show against the scalar reference with f32 accumulation.
    pub const fn tolerance(self, dtype: Dtype) -> f32 {
        match (self, dtype) {
            (Op::Embed | Op::Sample, _) => 0.0,
            (_, Dtype::F32) => 2e-5,
            // One bf16 rounding step of the result, and a little for the order of sums.
            (_, Dtype::Bf16) => 1.2e-2,
        }
    }

    /// The activation fused into this operation's output, if any.
    pub fn activation(self, config: &ModelConfig) -> Option<Activation> {
        match self {
            Op::Fc0 | Op::Up => Some(config.activation),
            _ => None,
        }
    }
}
