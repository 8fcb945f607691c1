//! Choice of the type of each tensor of a file.
//!
//! Vectors, routers and the small tensors of convolutions and states keep 32 bits. The mixes
//! follow those that llama.cpp documents: values and the last linear of the feed-forward network
//! lose most from rounding, and more so in the first and last layers, so these get more bits; the
//! head always does.

use model::source::StoredType;

use crate::file_type::{FileType, Mix};

/// Sizes of a model that the choice depends on.
#[derive(Debug, Clone, Copy)]
pub struct ModelSizes {
    pub layers: usize,
    /// Number of experts; 0 without any.
    pub experts: usize,
    /// Number of heads of q for each head of k and v.
    pub group_size: usize,
    /// The head multiplies by the embedding.
    pub tied_embeddings: bool,
}

/// Part of a model that a tensor's name states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Embedding,
    Head,
    Key(usize),
    Value(usize),
    FusedQkv(usize),
    AttentionOutput(usize),
    Down(usize),
    Other,
}

/// Parts of names of tensors that keep 32 bits in addition to vectors: routers, gates of shared
/// experts, convolutions and states.
const KEPT: [&str; 5] = ["ffn_gate_inp", "shortconv.conv", "ssm_conv1d", "ssm_norm", "ssm_a"];

/// Returns true if a tensor is a matrix whose type the file's type determines.
pub fn is_quantised(name: &str, shape: &[usize]) -> bool {
    let is_matrix = shape.iter().filter(|size| **size > 1).count() > 1 && !shape.contains(&0);
    is_matrix && name.ends_with(".weight") && !KEPT.iter().any(|kept| name.contains(kept))
}

/// Returns the type of a matrix with the given name and shape. A type whose blocks do not divide
/// a row is replaced by one with smaller blocks and at least as many bits.
pub fn tensor_type(file: FileType, sizes: ModelSizes, name: &str, shape: &[usize]) -> StoredType {
    let wanted = mixed(file, sizes, role(name));
    with_dividing_blocks(wanted, shape.last().copied().unwrap_or(1))
}

fn role(name: &str) -> Role {
    match name {
        "token_embd.weight" => return Role::Embedding,
        "output.weight" => return Role::Head,
        _ => {}
    }
    let parts = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((Ok(layer), rest)) = parts.map(|(layer, rest)| (layer.parse(), rest)) else {
        return Role::Other;
    };
    match rest.strip_suffix(".weight").unwrap_or(rest) {
        "attn_k" => Role::Key(layer),
        "attn_v" => Role::Value(layer),
        "attn_qkv" => Role::FusedQkv(layer),
        "attn_output" => Role::AttentionOutput(layer),
        "ffn_down" | "ffn_down_exps" | "ffn_down_shexp" => Role::Down(layer),
        _ => Role::Other,
    }
}

/// Returns true for the layers that lose most from rounding: the first and last eighth, and every
/// third one between them.
fn is_sensitive(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

fn mixed(file: FileType, sizes: ModelSizes, role: Role) -> StoredType {
    use StoredType::{Bf16, F16, F32, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, Q8_0};
    let FileType { base, mix, .. } = file;
    if matches!(base, F32 | F16 | Bf16 | Q8_0) {
        return base;
    }
    let sensitive = |layer| is_sensitive(layer, sizes.layers);
    let shares_keys = sizes.group_size >= 4;
    match role {
        Role::Head => Q6K,
        Role::Embedding if sizes.tied_embeddings => Q6K,
        Role::Value(_) | Role::Key(_) if sizes.experts == 8 && mix != Mix::Uniform => Q8_0,
        Role::Value(layer) => match (base, mix) {
            (Q5K | Q4K, Mix::Medium) if sensitive(layer) => Q6K,
            (Q4K, Mix::Small) if layer < 4 => Q5K,
            (Iq4Nl | Iq4Xs, _) if shares_keys => Q5K,
            (Q3K, Mix::Large) => Q5K,
            (Q3K, Mix::Medium) if layer < 2 => Q5K,
            (Q3K, Mix::Medium) => Q4K,
            (Q2K, _) if shares_keys => Q4K,
            (Q2K, Mix::Medium) => Q3K,
            _ => base,
        },
        Role::Down(layer) => match (base, mix) {
            (Q5K | Q4K, Mix::Medium) if sensitive(layer) => Q6K,
            (Q4K | Iq4Nl | Iq4Xs, Mix::Small) if layer < sizes.layers / 8 => Q5K,
            (Q3K, Mix::Large) => Q5K,
            (Q3K, Mix::Medium) if layer < sizes.layers / 16 => Q5K,
            (Q3K, Mix::Medium) if sensitive(layer) => Q4K,
            (Q2K, Mix::Small) if layer < sizes.layers / 8 => Q4K,
            (Q2K, Mix::Medium) => Q3K,
            _ => base,
        },
        Role::AttentionOutput(_) => match (base, mix) {
            (Q3K, Mix::Large) => Q5K,
            (Q3K, Mix::Medium) => Q4K,
            (Q2K, Mix::Medium) => Q3K,
            (Q4K | Iq4Nl | Iq4Xs, _) if sizes.experts == 8 => Q5K,
            _ => base,
        },
        Role::FusedQkv(_) => match (base, mix) {
            (Q5K, Mix::Medium) => Q6K,
            (Q4K, Mix::Medium) | (Q3K, Mix::Large) => Q5K,
            (Q3K, Mix::Medium) => Q4K,
            _ => base,
        },
        Role::Embedding | Role::Key(_) | Role::Other => base,
    }
}

fn with_dividing_blocks(wanted: StoredType, columns: usize) -> StoredType {
    use StoredType::{F16, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let divides = |stored: StoredType| columns.is_multiple_of(stored.block().0);
    if divides(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        Q2K | Q3K | Iq4Xs => Iq4Nl,
        Q4K => Q5_0,
        Q5K => Q5_1,
        Q6K => Q8_0,
        _ => F16,
    };
    if divides(smaller) { smaller } else { F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: ModelSizes =
        ModelSizes { layers: 32, experts: 0, group_size: 4, tied_embeddings: false };

    fn chosen(file: &str, sizes: ModelSizes, name: &str, columns: usize) -> StoredType {
        tensor_type(file.parse().expect("known"), sizes, name, &[64, columns])
    }

    #[test]
    fn mixes_spend_bits_where_rounding_costs_most() {
        let q4_k_m = |name: &str| chosen("q4_k_m", SIZES, name, 4096);
        assert_eq!(q4_k_m("output.weight"), StoredType::Q6K);
        assert_eq!(q4_k_m("token_embd.weight"), StoredType::Q4K);
        assert_eq!(q4_k_m("blk.0.attn_v.weight"), StoredType::Q6K);
        assert_eq!(q4_k_m("blk.4.attn_v.weight"), StoredType::Q4K);
        assert_eq!(q4_k_m("blk.6.ffn_down.weight"), StoredType::Q6K);
        assert_eq!(q4_k_m("blk.31.ffn_down_exps.weight"), StoredType::Q6K);
        assert_eq!(q4_k_m("blk.6.ffn_up.weight"), StoredType::Q4K);
        let sensitive = (0..32).filter(|layer| is_sensitive(*layer, 32)).count();
        assert_eq!(sensitive, 4 + 4 + 8);
        assert_eq!(chosen("q3_k_m", SIZES, "blk.5.attn_output.weight", 4096), StoredType::Q4K);
        assert_eq!(chosen("q2_k", SIZES, "blk.5.attn_v.weight", 4096), StoredType::Q4K);
        let tied = ModelSizes { tied_embeddings: true, ..SIZES };
        assert_eq!(chosen("q4_0", tied, "token_embd.weight", 4096), StoredType::Q6K);
        assert_eq!(chosen("q8_0", tied, "token_embd.weight", 4096), StoredType::Q8_0);
    }

    #[test]
    fn rows_that_blocks_do_not_divide_get_smaller_blocks_with_no_fewer_bits() {
        for file in FileType::ALL {
            for name in ["output.weight", "blk.0.attn_v.weight", "blk.9.ffn_up.weight"] {
                let whole = tensor_type(file, SIZES, name, &[64, 4096]);
                for columns in [576, 48, 7] {
                    let found = tensor_type(file, SIZES, name, &[64, columns]);
                    assert_eq!(columns % found.block().0, 0, "{file} {name} {columns}");
                    let bits = |stored: StoredType| stored.row_bytes(4096);
                    assert!(bits(found) >= bits(whole), "{file} {name} {columns}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn vectors_and_routers_keep_their_precision() {
        for (name, shape, expected) in [
            ("blk.0.attn_norm.weight", &[64][..], false),
            ("blk.0.attn_q.bias", &[64], false),
            ("blk.0.ffn_gate_inp.weight", &[8, 64], false),
            ("blk.0.ffn_gate_inp_shexp.weight", &[1, 64], false),
            ("blk.0.ssm_conv1d.weight", &[64, 4], false),
            ("blk.0.ffn_gate_exps.weight", &[8, 64, 64], true),
            ("token_embd.weight", &[64, 64], true),
        ] {
            assert_eq!(is_quantised(name, shape), expected, "{name}");
        }
    }
}
