//! Location of experts' weights in a checkpoint: one tensor per expert, or one for all experts of a
//! layer.

use super::llama;
use super::tensors::{Layouts, TensorSlice, stacked};
use crate::config::{Family, ModelConfig};
use crate::experts::Experts;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Returns the possible layouts of a tensor.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let (TensorId::Layer { layer, op, part: TensorPart::Matrix }, Some(experts)) =
        (id, config.experts)
    else {
        return vec![llama::pieces(config, id)];
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    if op == Op::Router {
        let names = ["mlp.gate", "block_sparse_moe.gate", "block_sparse_moe.router.layer"];
        let mut names: Vec<String> = names.map(|name| at(&format!("{name}.weight"))).into();
        names.rotate_left(usize::from(config.family == Family::Mixtral));
        let piece = TensorSlice::whole(names[0].clone(), &[experts.count, config.hidden_size]);
        return vec![vec![TensorSlice { names, ..piece }]];
    }
    let Experts { count, ffn_size, .. } = experts;
    let hidden = config.hidden_size;
    let (own, (rows, columns), fused, (first, all)) = match op {
        Op::ExpertGate => (["gate_proj", "w1"], (ffn_size, hidden), 0, (0, 2 * ffn_size)),
        Op::ExpertUp => (["up_proj", "w3"], (ffn_size, hidden), 0, (ffn_size, 2 * ffn_size)),
        Op::ExpertDown => (["down_proj", "w2"], (hidden, ffn_size), 1, (0, hidden)),
        _ => return vec![llama::pieces(config, id)],
    };
    let one = |expert: usize| {
        let usual = at(&format!("mlp.experts.{expert}.{}.weight", own[0]));
        let mixtral = at(&format!("block_sparse_moe.experts.{expert}.{}.weight", own[1]));
        let piece = TensorSlice::whole(usual.clone(), &[rows, columns]);
        let names = match config.family {
            Family::Mixtral => vec![mixtral, usual],
            _ => vec![usual, mixtral],
        };
        TensorSlice { names, ..piece }
    };
    let all_of = |name: &str| stacked(&at(name), count, all, columns, first, rows);
    let mut layouts: Layouts = vec![(0..count).map(one).collect()];
    let transformers = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"];
    let granite = ["block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"];
    layouts.push(all_of(transformers[fused]));
    layouts.push(all_of(granite[fused]));
    layouts
}
