//! Facts about a model that only the tensors of its file reveal.

use super::dequantise::{TensorType, dequantise};
use super::layout::{self, EMBEDDING, OUTPUT};
use super::parts::GgufShards;
use crate::source::{SourceError, StoredType};

/// Limit of the number of rope factors, which is half the size of a head. Heads have 64 to 256
/// elements.
const MAX_ROPE_FACTORS: usize = 1 << 16;

/// End of the names of the biases for the selection of experts.
const SELECTION_BIAS: &str = ".exp_probs_b.bias";

/// End of the names of matrices of keys.
const KEYS: &str = ".attn_k.weight";

/// Facts about a model that only its tensors reveal.
#[derive(Debug, Clone, Default)]
pub(super) struct TensorFacts {
    /// Number of rows of the embedding table, for files without a token list.
    pub embedding_rows: Option<usize>,
    pub has_output: bool,
    pub has_q_bias: bool,
    pub has_q_norm: bool,
    pub has_out_bias: bool,
    pub has_ffn_bias: bool,
    /// Routers have numbers that are added to scores for the selection of experts.
    pub has_selection_bias: bool,
    /// The convolutions of layers with a state have biases.
    pub has_conv_bias: bool,
    /// A layer has no matrix of values.
    pub lacks_values: bool,
    pub rope: RopeFactors,
}

/// Divisors of inverse frequencies, each list of shape `[rotary_dim / 2]`.
#[derive(Debug, Clone, Default)]
pub(super) struct RopeFactors {
    /// Factors for texts of any length.
    pub all: Option<Vec<f32>>,
    /// Factors for texts beyond the original length.
    pub long: Option<Vec<f32>>,
    /// Factors for texts within the original length.
    pub short: Option<Vec<f32>>,
}

impl TensorFacts {
    /// Reads the facts from the tensors of a file.
    ///
    /// # Errors
    /// A table of rope factors that is invalid or cannot be read.
    pub(super) fn read(parts: &GgufShards, path: &str) -> Result<TensorFacts, SourceError> {
        let has = |name: &str| parts.tensors.contains_key(name);
        let embedding = parts.tensors.get(EMBEDDING);
        let [all, long, short] = layout::ROPE_FACTORS;
        Ok(TensorFacts {
            embedding_rows: embedding.and_then(|info| info.shape.first().copied()),
            has_output: has(OUTPUT),
            has_q_bias: has("blk.0.attn_q.bias"),
            has_q_norm: has("blk.0.attn_q_norm.weight"),
            has_out_bias: has("blk.0.attn_output.bias"),
            has_ffn_bias: has("blk.0.ffn_gate.bias"),
            has_selection_bias: parts.tensors.keys().any(|name| name.ends_with(SELECTION_BIAS)),
            has_conv_bias: parts.tensors.keys().any(|name| name.ends_with(".ssm_conv1d.bias")),
            lacks_values: parts.tensors.keys().any(|name| {
                let layer = name.strip_suffix(KEYS);
                layer.is_some_and(|layer| !has(&format!("{layer}.attn_v.weight")))
            }),
            rope: RopeFactors {
                all: read_factors(parts, path, all)?,
                long: read_factors(parts, path, long)?,
                short: read_factors(parts, path, short)?,
            },
        })
    }
}

/// Reads a table of rope factors; `None` if it does not exist.
fn read_factors(
    parts: &GgufShards,
    path: &str,
    name: &str,
) -> Result<Option<Vec<f32>>, SourceError> {
    let Some(info) = parts.tensors.get(name) else { return Ok(None) };
    let n = match (info.tensor_type, info.shape.as_slice()) {
        (TensorType::Known(StoredType::F32), &[n]) if n <= MAX_ROPE_FACTORS => n,
        _ => {
            return Err(SourceError::Format {
                path: path.to_owned(),
                reason: format!("tensor {name} is no short vector of F32"),
            });
        }
    };
    let mut bytes = vec![0; StoredType::F32.row_bytes(n)];
    parts
        .read(info.part, info.offset, &mut bytes)
        .map_err(|source| SourceError::Io { path: path.to_owned(), source })?;
    let mut factors = vec![0.0; n];
    dequantise(StoredType::F32, &bytes, &mut factors);
    Ok(Some(factors))
}
