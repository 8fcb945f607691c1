//! Names and shapes of the tensors of a GGUF file, and the order of their rows.
//!
//! Files of some architectures store the rows of q and k permuted: GGML's rope for these
//! architectures rotates neighbours (2i, 2i + 1), while the original model and this program rotate
//! halves (i, i + head_dim / 2). Files of other architectures are not permuted. With latent
//! attention the rotated rows are the last of a head in files, and the first in the model.

use super::piece::GgufSlice;
use super::states;
use crate::config::{Family, ModelConfig};
use crate::experts::Experts;
use crate::family::{description, nemotron_h};
use crate::latent::LatentAttention;
use crate::layers::CacheSharing;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Factors of the rope frequencies: for all texts (LLaMA-3), for long texts and for short texts
/// (LongRoPE).
pub const ROPE_FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// Gain of the last norm in files of models with short convolutions.
const CONVOLUTIONS_NORM: &str = "token_embd_norm.weight";
/// Part of the names of an indexer's tensors.
const INDEXER: &str = ".indexer.";
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";

/// Returns the possible layouts of a tensor, each a list of consecutive pieces, the usual one
/// first; empty for a tensor that the model does not have.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Vec<Vec<GgufSlice>> {
    pieces(config, id).into_iter().chain(other_pieces(config, id)).collect()
}

/// Returns the pieces of a tensor in files that store it as a part of a larger one, if there are
/// such files: keys and values of latent attention in files from before they were stored apart, and
/// the gates of experts together with the linears that they multiply.
fn other_pieces(config: &ModelConfig, id: TensorId) -> Option<Vec<GgufSlice>> {
    let TensorId::Layer { layer, op, part: TensorPart::Matrix } = id else { return None };
    let block = block(config, layer, op);
    let whole = |stem: &str, shape| GgufSlice::whole(format!("blk.{block}.{stem}.weight"), shape);
    match (op, config.latent, config.experts) {
        (Op::QAbsorb | Op::VUp, Some(LatentAttention { kv_rank, nope_dim, value_dim, .. }), _) => {
            let of_head = nope_dim + value_dim;
            let all = whole("attn_kv_b", vec![config.num_heads * of_head, kv_rank]);
            let piece = |head: usize| match op {
                Op::QAbsorb => all.columns_of_rows(head * of_head, nope_dim),
                _ => all.rows_from(head * of_head + nope_dim, value_dim),
            };
            Some((0..config.num_heads).map(piece).collect())
        }
        (Op::ExpertGate | Op::ExpertUp, _, Some(Experts { count, ffn_size, .. })) => {
            let all =
                whole("ffn_gate_up_exps", vec![count, 2 * ffn_size, config.expert_row_size()]);
            let first = if op == Op::ExpertUp { ffn_size } else { 0 };
            let piece = |expert| all.rows_from(2 * expert * ffn_size + first, ffn_size);
            Some((0..count).map(piece).collect())
        }
        _ => None,
    }
}

/// Returns the consecutive pieces of a tensor; `None` for a tensor that the model does not have.
fn pieces(config: &ModelConfig, id: TensorId) -> Option<Vec<GgufSlice>> {
    let (rows, elements) = id.expected_shape(config)?;
    let whole = |name: &str| Some(vec![GgufSlice::whole(name.to_owned(), vec![rows, elements])]);
    match id {
        TensorId::Embedding => whole(EMBEDDING),
        TensorId::Head if config.tied_embeddings => whole(EMBEDDING),
        TensorId::Head => whole(OUTPUT),
        TensorId::FinalNorm { .. } => {
            let has_convolutions = description(config.family).gguf.has_short_convolutions;
            let name = if has_convolutions { CONVOLUTIONS_NORM } else { "output_norm.weight" };
            Some(vec![GgufSlice::whole(name.to_owned(), vec![elements])])
        }
        TensorId::Positions => None,
        TensorId::PerLayerTable => whole("per_layer_token_embd.weight"),
        TensorId::PerLayerProjection { part: TensorPart::Matrix } => {
            whole("per_layer_model_proj.weight")
        }
        TensorId::PerLayerProjection { .. } => {
            Some(vec![GgufSlice::whole("per_layer_proj_norm.weight".to_owned(), vec![elements])])
        }
        // Layers for multi-token prediction are not read from such files.
        TensorId::JoinHidden { .. } => None,
        TensorId::Layer { layer, op, part } => {
            let block = block(config, layer, op);
            if let Some(pieces) = states::pieces(config, block, op, part) {
                return Some(pieces);
            }
            if let Some(pieces) = indexed_keys(config, layer, op, part) {
                return Some(pieces);
            }
            // What a router adds to scores is the second of its vectors.
            let is_bias = part == TensorPart::Bias || (op, part) == (Op::Router, TensorPart::Gain);
            let suffix = if is_bias { "bias" } else { "weight" };
            let name = |stem: &str| match stem.contains('.') {
                true => format!("blk.{block}.{stem}"),
                false => format!("blk.{block}.{stem}.{suffix}"),
            };
            let from_keys = op == Op::V && config.computes_values_from_keys(layer);
            let op = if from_keys { Op::K } else { op };
            if let Some((stem, all_rows, first_row)) = fused(config, op, part) {
                let all = GgufSlice::whole(name(stem), vec![all_rows, elements]);
                return Some(vec![all.rows_from(first_row, rows)]);
            }
            let mut shape = if id.is_vector() { vec![elements] } else { vec![rows, elements] };
            let matrices = match op {
                Op::ExpertGate | Op::ExpertUp | Op::ExpertDown => {
                    config.experts.map(|experts| experts.count)
                }
                Op::QAbsorb | Op::VUp => Some(config.num_heads),
                _ => None,
            };
            if let Some(matrices) = matrices {
                shape[0] /= matrices;
                shape.insert(0, matrices);
            }
            // Vectors are read whole, including those of all experts.
            let all = GgufSlice::whole(name(layer_stem(config, op, part)?), shape);
            Some(vec![GgufSlice { rows, elements, ..all }])
        }
    }
}

/// Returns the block of a file that has an operation of a layer.
fn block(config: &ModelConfig, layer: usize, op: Op) -> usize {
    match description(config.family).gguf.has_single_mixers {
        true => nemotron_h::block(config, layer, op),
        false => layer,
    }
}

/// Returns the pieces of the keys of a layer with an indexer, and of their norms; `None` for other
/// tensors.
fn indexed_keys(
    config: &ModelConfig,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Option<Vec<GgufSlice>> {
    let (latent, indexer) = (config.latent?, config.of_layer(layer).own_indexer()?);
    let whole = |stem: &str, shape: &[usize]| {
        GgufSlice::whole(format!("blk.{layer}.{stem}"), shape.to_vec())
    };
    let (hidden, key) = (config.hidden_size, indexer.head_dim);
    Some(match (op, part) {
        (Op::K, TensorPart::Matrix) => vec![
            whole("attn_kv_a_mqa.weight", &[latent.key_dim(), hidden]),
            whole("indexer.attn_k.weight", &[key, hidden]),
        ],
        (Op::K, TensorPart::Gain) => vec![
            whole("attn_kv_a_norm.weight", &[latent.kv_rank]),
            whole("indexer.k_norm.weight", &[key]),
            whole("indexer.k_norm.bias", &[key]),
        ],
        (Op::IndexQuery, _) => {
            vec![whole("indexer.attn_q_b.weight", &[indexer.query_size(), latent.q_rank?])]
        }
        (Op::IndexWeights, _) => vec![whole("indexer.proj.weight", &[indexer.heads, hidden])],
        _ => return None,
    })
}

/// Returns the stem, number of rows and first row of a matrix that Phi's files store as a part of a
/// larger tensor.
fn fused(config: &ModelConfig, op: Op, part: TensorPart) -> Option<(&'static str, usize, usize)> {
    if config.family != Family::Phi3 || part != TensorPart::Matrix {
        return None;
    }
    let (q, kv, ffn) = (config.q_size(), config.kv_size(), config.ffn_size);
    Some(match op {
        Op::Q => ("attn_qkv", q + 2 * kv, 0),
        Op::K => ("attn_qkv", q + 2 * kv, q),
        Op::V => ("attn_qkv", q + 2 * kv, q + kv),
        Op::Gate => ("ffn_up", 2 * ffn, 0),
        Op::Up => ("ffn_up", 2 * ffn, ffn),
        _ => return None,
    })
}

fn layer_stem(config: &ModelConfig, op: Op, part: TensorPart) -> Option<&'static str> {
    let shared = config.has_shared_expert();
    if let Some(stem) = (description(config.family).gguf.stem)(op, part) {
        return Some(stem);
    }
    Some(match (op, part) {
        (Op::Norm0, _) => "attn_norm",
        (Op::QDown, TensorPart::Gain) => "attn_q_a_norm",
        (Op::QDown, _) => "attn_q_a",
        (Op::Q, _) if config.latent.is_some_and(|latent| latent.q_rank.is_some()) => "attn_q_b",
        (Op::QAbsorb, _) => "attn_k_b",
        (Op::K, TensorPart::Gain) if config.latent.is_some() => "attn_kv_a_norm",
        (Op::K, _) if config.latent.is_some() => "attn_kv_a_mqa",
        (Op::VUp, _) => "attn_v_b",
        (Op::Q, TensorPart::Gain) => "attn_q_norm",
        (Op::K, TensorPart::Gain) => "attn_k_norm",
        (Op::Q, _) => "attn_q",
        (Op::K, _) => "attn_k",
        (Op::V, _) => "attn_v",
        (Op::Softmax | Op::Attention, TensorPart::Gain) => "attn_sinks",
        (Op::Out, _) => "attn_output",
        (Op::PostNorm0, _) => "post_attention_norm",
        (Op::Norm1, _) => "ffn_norm",
        (Op::PostNorm1, _) => "post_ffw_norm",
        (Op::SharedGate, _) => "ffn_gate_inp_shexp",
        (Op::Gate, _) if shared => "ffn_gate_shexp",
        (Op::Up, _) if shared => "ffn_up_shexp",
        (Op::Down, _) if shared => "ffn_down_shexp",
        (Op::Fc0, _) if shared => "ffn_up_shexp",
        (Op::Fc1, _) if shared => "ffn_down_shexp",
        (Op::Gate | Op::DenseGate, _) => "ffn_gate",
        (Op::Up | Op::DenseUp | Op::Fc0, _) => "ffn_up",
        (Op::Down | Op::DenseDown | Op::Fc1, _) => "ffn_down",
        (Op::Router, TensorPart::Gain) => "exp_probs_b",
        (Op::Router, _) => "ffn_gate_inp",
        (Op::ExpertGate, _) => "ffn_gate_exps",
        (Op::ExpertUp, _) => "ffn_up_exps",
        (Op::ExpertDown, _) => "ffn_down_exps",
        (Op::ExpertLatentDown, _) => "ffn_latent_down",
        (Op::ExpertLatentUp, _) => "ffn_latent_up",
        _ => return None,
    })
}

/// Returns every tensor that a model has.
pub(super) fn tensor_ids(config: &ModelConfig) -> impl Iterator<Item = TensorId> {
    let around =
        [TensorId::Embedding, TensorId::Head, TensorId::FinalNorm { part: TensorPart::Gain }];
    let layers = (0..config.num_layers).flat_map(move |layer| {
        config.layer_ops(layer).iter().flat_map(move |op| {
            [TensorPart::Matrix, TensorPart::Gain, TensorPart::Bias]
                .into_iter()
                .map(move |part| TensorId::Layer { layer, op: *op, part })
                .filter(|id| id.expected_shape(config).is_some())
        })
    });
    let inputs = [
        TensorId::PerLayerTable,
        TensorId::PerLayerProjection { part: TensorPart::Matrix },
        TensorId::PerLayerProjection { part: TensorPart::Gain },
    ];
    let inputs = inputs.into_iter().filter(|id| id.expected_shape(config).is_some());
    around.into_iter().chain(inputs).chain(layers)
}

/// Returns true for tensors that are not weights of the model: rope factors, which are in the
/// configuration; the unused tables of rope frequencies in old files; and layers for multi-token
/// prediction.
pub(super) fn is_ignored(config: &ModelConfig, name: &str) -> bool {
    ROPE_FACTORS.contains(&name)
        || is_of_prediction(config, name)
        || is_of_reader(config, name)
        || name.ends_with(".attn_rot_embd.weight")
        || name.ends_with(".rope_freqs")
}

/// Returns true if a tensor belongs to the layers for multi-token prediction, which follow the
/// model's layers.
fn is_of_prediction(config: &ModelConfig, name: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let layer = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
    let has_some = description(config.family).gguf.reads("nextn_predict_layers");
    let blocks = block(config, config.num_layers, Op::Norm0);
    has_some && layer.is_some_and(|layer| layer >= blocks)
}

/// Returns true for the keys and values of a layer that reads those of another one.
fn is_of_reader(config: &ModelConfig, name: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let parsed = layer.and_then(|(layer, stem)| Some((layer.parse::<usize>().ok()?, stem)));
    parsed.is_some_and(|(layer, stem)| {
        let is_reader = |layer| config.layers.kind(layer).caches == CacheSharing::Reader;
        let stems = ["attn_k.", "attn_v.", "attn_k_norm."];
        layer < config.num_layers && is_reader(layer) && stems.iter().any(|s| stem.starts_with(s))
    })
}

/// Order of the rows of each head, or of the elements of each head of a vector, in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadOrder {
    /// Number of rows of a head.
    pub(super) size: usize,
    /// Number of rotated rows, which are the first in the model.
    pub(super) rotated: usize,
    /// The rotated rows are the first in the file too.
    pub(super) begins_rotated: bool,
}

impl HeadOrder {
    /// Returns the index at which the file stores row `index` of a head: the rotated rows are the
    /// last or the first, with neighbours instead of halves.
    pub(super) fn stored_index(self, index: usize) -> usize {
        let HeadOrder { size, rotated, begins_rotated } = self;
        let (half, start) = (rotated / 2, if begins_rotated { 0 } else { size - rotated });
        match index.checked_sub(rotated) {
            Some(_) if begins_rotated => index,
            Some(index) => index,
            None => start + 2 * (index % half) + index / half,
        }
    }
}

/// Returns the order of the rows of a tensor's piece if they are in GGML's order. No family with
/// such rows has gains of q and k, except the norm of an indexer's keys.
pub(super) fn head_order(config: &ModelConfig, id: TensorId, piece: &str) -> Option<HeadOrder> {
    if piece.contains(INDEXER) {
        let (latent, indexer) = (config.latent?, config.features.indexer?);
        let (size, rotated) = (indexer.head_dim, latent.rope_dim);
        let is_weighed = matches!(id, TensorId::Layer { op: Op::IndexWeights, .. });
        return (!is_weighed).then_some(HeadOrder { size, rotated, begins_rotated: true });
    }
    let TensorId::Layer { op: op @ (Op::Q | Op::K), part, .. } = id else { return None };
    if part == TensorPart::Gain || !description(config.family).gguf.rotates_neighbours {
        return None;
    }
    let size = match (config.latent, op) {
        (None, _) => config.head_dim,
        (Some(latent), Op::Q) => latent.query_dim(),
        (Some(latent), _) => latent.key_dim(),
    };
    let rotated = config.latent.map_or(size, |latent| latent.rope_dim);
    Some(HeadOrder { size, rotated, begins_rotated: false })
}
