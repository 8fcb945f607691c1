//! Sources of weights: safetensors, GGUF or seeded random numbers, with a common trait.

pub mod dummy;
pub mod float8;
pub mod gguf;
pub mod low_bit;
pub mod safetensors;
mod stored;

use std::fmt::Debug;

use crate::config::ModelConfig;
use crate::ops::{Op, WeightShape};

pub use stored::StoredType;

/// Identifier of a part of a model's weights, independent of the file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorId {
    /// Token embedding `[vocab, hidden]`.
    Embedding,
    /// Learned positions `[max_positions + offset, hidden]` (OPT).
    Positions,
    /// Output head `[vocab, hidden]`; identical to the embedding if tied.
    Head,
    /// Gain and bias of the norm before the head; with streams, the linear of its mapping, and the
    /// base and the scale of the latter in place of the bias.
    FinalNorm { part: TensorPart },
    /// Second table of tokens, `[vocab, layers * size]`, of models with inputs for each layer.
    PerLayerTable,
    /// Linear of the embedding for the inputs of each layer, and the gain of its norm.
    PerLayerProjection { part: TensorPart },
    /// Linear of an embedding and a hidden state, and the gains of their norms.
    JoinHidden { part: TensorPart },
    /// Tensor of an operation of a layer.
    Layer { layer: usize, op: crate::ops::Op, part: TensorPart },
}

impl TensorId {
    /// Returns true if the tensor is a vector rather than a matrix.
    pub fn is_vector(self) -> bool {
        matches!(
            self,
            TensorId::FinalNorm { part: TensorPart::Gain | TensorPart::Bias }
                | TensorId::PerLayerProjection { part: TensorPart::Gain | TensorPart::Bias }
                | TensorId::JoinHidden { part: TensorPart::Gain | TensorPart::Bias }
                | TensorId::Layer { part: TensorPart::Gain | TensorPart::Bias, .. }
        )
    }

    /// Returns the shape that a configuration requires; `None` for a tensor that such a model does
    /// not have.
    pub fn expected_shape(self, config: &ModelConfig) -> Option<(usize, usize)> {
        let vector = |weights: Option<WeightShape>, part: TensorPart| {
            let shape = weights?;
            let place = match (shape.matrix, part) {
                (matrix, TensorPart::Matrix) => return matrix,
                (Some(_), TensorPart::Bias) | (None, TensorPart::Gain) => 0,
                (None, TensorPart::Bias) | (Some(_), TensorPart::Gain) => 1,
            };
            shape.vectors[place].map(|count| (1, count))
        };
        match self {
            TensorId::Embedding | TensorId::Head => Some((config.vocab_size, config.hidden_size)),
            TensorId::Positions => config
                .learned_positions
                .map(|_| (config.learned_position_rows(), config.hidden_size)),
            TensorId::FinalNorm { part } => vector(Op::FinalNorm.weights(config), part),
            TensorId::PerLayerTable => config
                .features
                .per_layer_inputs
                .map(|inputs| (inputs.vocab_size, inputs.row_elements())),
            TensorId::PerLayerProjection { part } => {
                vector(Op::PerLayerEmbed.weights(config), part)
            }
            TensorId::JoinHidden { part } => {
                let joins = config.features.hidden_states.are_joined();
                joins.then(|| vector(Op::JoinHidden.weights(config), part))?
            }
            TensorId::Layer { layer, op, part } => {
                let known = layer < config.num_layers && config.layer_ops(layer).contains(&op);
                known.then(|| vector(op.weights(config.of_layer(layer)), part))?
            }
        }
    }
}

/// Part of an operation's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorPart {
    /// The `[out, in]` matrix of a linear.
    Matrix,
    /// The gain of a norm, including the one after q and k; the sinks of a softmax; what a router
    /// adds to the scores of experts for their selection or multiplies their weights by, or the
    /// experts of each token; the scales of mappings of streams.
    Gain,
    /// The bias of a linear or norm, or the base of mappings of streams; the factor of the residual
    /// stream after a layer's last norm; the gain of the second of two norms.
    Bias,
}

/// A model's weights, which can be read in pieces. Implementations may be shared between threads.
pub trait WeightSource: Debug + Send + Sync {
    /// Returns the shape of the tensor: `[out, in]`, or `[1, n]` for a vector.
    ///
    /// # Errors
    /// A missing tensor, or one whose shape differs from the configuration.
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError>;

    /// Reads rows `[first, first + out.len() / row_elements)` of a tensor as bf16, rounded to
    /// nearest even if the stored type has more bits.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape, or a file that ends early.
    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [half::bf16],
    ) -> Result<(), SourceError>;

    /// Reads rows like [`WeightSource::read_bf16`], but as f32 (exact).
    ///
    /// # Errors
    /// See [`WeightSource::read_bf16`].
    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError>;

    /// Returns the type in which a tensor is stored, or whose blocks represent it without loss; F32
    /// for sources that generate values.
    ///
    /// # Errors
    /// See [`WeightSource::shape`]; in addition, a type that cannot be read.
    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        self.shape(id).map(|_| StoredType::F32)
    }

    /// Reads rows `[first, first + out.len() / row_bytes)` of a matrix as stored blocks, in the
    /// model's order of rows. `row_bytes` is [`StoredType::row_bytes`]. Only matrices whose stored
    /// type has a format for kernels, [`StoredType::grouped`], can be read this way.
    ///
    /// # Errors
    /// See [`WeightSource::read_bf16`]; in addition, a tensor that is stored in another type.
    fn read_blocks(
        &self,
        id: TensorId,
        _first_row: usize,
        _out: &mut [u8],
    ) -> Result<(), SourceError> {
        let stored = self.stored_type(id)?.name();
        Err(SourceError::NoBlocks { tensor: format!("{id:?}"), stored })
    }
}

/// Errors in a model's files.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path}: {reason}")]
    Format { path: String, reason: String },
    #[error("{path}: tensor {tensor} is missing")]
    Missing { path: String, tensor: String },
    #[error("{path}: tensor {tensor} has shape {found:?}, the configuration needs {expected:?}")]
    Shape { path: String, tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{path}: tensor {tensor} is stored as {found}, which is not supported ({supported})")]
    Type { path: String, tensor: String, found: String, supported: &'static str },
    #[error(
        "tensor {tensor} is stored as {stored}, which has no blocks that a kernel can run from; it \
         must be expanded"
    )]
    NoBlocks { tensor: String, stored: &'static str },
}
