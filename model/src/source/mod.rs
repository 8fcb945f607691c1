//! Where weights come from: safetensors, GGUF or seeded random numbers, behind one trait.

pub mod dummy;
mod float8;
pub mod gguf;
pub mod safetensors;
mod stored;

use std::fmt::Debug;

use crate::config::ModelConfig;
use crate::ops::{Op, WeightShape};

pub use stored::StoredType;

/// A part of a model's weights, named the same way for every format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorId {
    /// `[vocab, hidden]`.
    Embedding,
    /// Learned positions `[max_positions + offset, hidden]` (OPT).
    Positions,
    /// `[vocab, hidden]`; the embedding when tied.
    Head,
    /// Gain and bias of the norm before the head.
    FinalNorm { part: Part },
    /// A tensor of an operation of a layer.
    Layer { layer: usize, op: crate::ops::Op, part: Part },
}

impl TensorId {
    /// Whether it is a vector rather than a matrix.
    pub fn is_vector(self) -> bool {
        matches!(
            self,
            TensorId::FinalNorm { .. } | TensorId::Layer { part: Part::Gain | Part::Bias, .. }
        )
    }

    /// The shape that a configuration asks for; `None` for a tensor that such a model lacks.
    pub fn expected_shape(self, config: &ModelConfig) -> Option<(usize, usize)> {
        let vector = |weights: Option<WeightShape>, part: Part| {
            let shape = weights?;
            let place = match (shape.matrix, part) {
                (matrix, Part::Matrix) => return matrix,
                (Some(_), Part::Bias) | (None, Part::Gain) => 0,
                (None, Part::Bias) | (Some(_), Part::Gain) => 1,
            };
            shape.vectors[place].map(|count| (1, count))
        };
        match self {
            TensorId::Embedding | TensorId::Head => Some((config.vocab_size, config.hidden_size)),
            TensorId::Positions => config
                .learned_positions
                .map(|_| (config.learned_position_rows(), config.hidden_size)),
            TensorId::FinalNorm { part } => vector(Op::FinalNorm.weights(config), part),
            TensorId::Layer { layer, op, part } => {
                let known = layer < config.num_layers && config.layer_ops(layer).contains(&op);
                known.then(|| vector(op.weights(config), part))?
            }
        }
    }
}

/// Which tensor of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The `[out, in]` matrix of a linear.
    Matrix,
    /// The gain of a norm, also of the one behind q and k; the sinks of a softmax.
    Gain,
    /// The bias of a linear or of a norm.
    Bias,
}

/// A model's weights, readable in pieces. Implementations may be shared by threads.
pub trait WeightSource: Debug + Send + Sync {
    /// Elements of the tensor: `[out, in]`, or `[1, n]` for a vector.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape than the configuration says.
    fn shape(&self, id: TensorId) -> Result<(usize, usize), SourceError>;

    /// Reads rows `[first, first + out.len() / row_elements)` of a tensor as bf16, rounding to
    /// nearest even where the stored type has more bits.
    ///
    /// # Errors
    /// A tensor that is missing or misshapen, or a file that ends early.
    fn read_bf16(
        &self,
        id: TensorId,
        first_row: usize,
        out: &mut [half::bf16],
    ) -> Result<(), SourceError>;

    /// Like [`WeightSource::read_bf16`], in f32 (exact).
    ///
    /// # Errors
    /// As `read_bf16`.
    fn read_f32(&self, id: TensorId, first_row: usize, out: &mut [f32]) -> Result<(), SourceError>;

    /// The type a tensor is stored as, or whose blocks hold it without loss; F32 for sources that
    /// make their values.
    ///
    /// # Errors
    /// As [`WeightSource::shape`], or a type that cannot be read.
    fn stored_type(&self, id: TensorId) -> Result<StoredType, SourceError> {
        self.shape(id).map(|_| StoredType::F32)
    }

    /// Reads rows `[first, first + out.len() / row_bytes)` of a matrix as its stored blocks, in the
    /// model's order of rows, `row_bytes` as [`StoredType::row_bytes`] says. Only for matrices
    /// whose stored type has a form to run from, [`StoredType::grouped`].
    ///
    /// # Errors
    /// As [`WeightSource::read_bf16`], and a tensor that is stored in another type.
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

/// What is wrong with a model's files.
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
