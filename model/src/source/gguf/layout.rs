//! Which tensor of a GGUF file holds what, its shape, and the order of its rows.
//!
//! llama files keep the rows of q and k permuted: GGML's rope for that architecture turns
//! neighbours (2i, 2i + 1), while the model and this program turn halves (i, i + head_dim / 2).
//! qwen2 files keep them as they are.

use std::collections::HashMap;

use super::config::TensorFacts;
use super::parse::TensorInfo;
use crate::config::{Family, ModelConfig};
use crate::ops::Op;
use crate::source::{Part, TensorId};

/// Factors of the rope frequencies (LLaMA-3).
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// What the tensors tell the configuration, but for the rope factors, which must be read.
pub(super) fn tensor_facts(tensors: &HashMap<String, TensorInfo>) -> TensorFacts {
    let has = |name: &str| tensors.contains_key(name);
    TensorFacts {
        embedding_rows: tensors.get(EMBEDDING).and_then(|info| info.shape.first().copied()),
        has_output: has(OUTPUT),
        has_q_bias: has("blk.0.attn_q.bias"),
        has_out_bias: has("blk.0.attn_output.bias"),
        has_ffn_bias: has("blk.0.ffn_gate.bias"),
        rope_factors: None,
    }
}

/// The name in the file; `None` for what the architecture does not have.
pub(super) fn name(config: &ModelConfig, id: TensorId) -> Option<String> {
    id.expected_shape(config)?;
    match id {
        TensorId::Embedding => Some(EMBEDDING.to_owned()),
        TensorId::Head if config.tied_embeddings => Some(EMBEDDING.to_owned()),
        TensorId::Head => Some(OUTPUT.to_owned()),
        TensorId::FinalNorm { .. } => Some("output_norm.weight".to_owned()),
        TensorId::Positions => None,
        TensorId::Layer { layer, op, part } => {
            let suffix = if part == Part::Bias { "bias" } else { "weight" };
            Some(format!("blk.{layer}.{}.{suffix}", layer_stem(op)?))
        }
    }
}

/// The shape the configuration asks for, `[out, in]` or `[n]`; `None` as for [`name`].
pub(super) fn shape(config: &ModelConfig, id: TensorId) -> Option<Vec<usize>> {
    let (rows, elements) = id.expected_shape(config)?;
    let vector = matches!(
        id,
        TensorId::FinalNorm { .. } | TensorId::Layer { part: Part::Gain | Part::Bias, .. }
    );
    Some(if vector { vec![elements] } else { vec![rows, elements] })
}

fn layer_stem(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Norm0 => "attn_norm",
        Op::Q => "attn_q",
        Op::K => "attn_k",
        Op::V => "attn_v",
        Op::Out => "attn_output",
        Op::Norm1 => "ffn_norm",
        Op::Gate => "ffn_gate",
        Op::Up => "ffn_up",
        Op::Down => "ffn_down",
        _ => return None,
    })
}

/// Every tensor that a model has.
pub(super) fn tensor_ids(config: &ModelConfig) -> impl Iterator<Item = TensorId> {
    let around = [TensorId::Embedding, TensorId::Head, TensorId::FinalNorm { part: Part::Gain }];
    let layers = (0..config.num_layers).flat_map(move |layer| {
        config.layer_ops(layer).iter().flat_map(move |op| {
            [Part::Matrix, Part::Gain, Part::Bias]
                .into_iter()
                .map(move |part| TensorId::Layer { layer, op: *op, part })
                .filter(|id| id.expected_shape(config).is_some())
        })
    });
    around.into_iter().chain(layers)
}

/// Tensors that are no weights: the rope factors, which the configuration holds, and the table of
/// rope frequencies that old files carry and nobody reads.
pub(super) fn is_ignored(name: &str) -> bool {
    name == ROPE_FACTORS || name.ends_with(".attn_rot_embd.weight") || name.ends_with(".rope_freqs")
}

/// Whether a tensor's rows are in GGML's order.
pub(super) fn is_permuted(config: &ModelConfig, id: TensorId) -> bool {
    config.family == Family::Llama && matches!(id, TensorId::Layer { op: Op::Q | Op::K, .. })
}

/// Where the file keeps row `index` of a head of `head` rows.
pub(super) fn permuted_index(index: usize, head: usize) -> usize {
    let half = head / 2;
    2 * (index % half) + index / half
}
