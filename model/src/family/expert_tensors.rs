//! Location of the weights of layers with experts in a checkpoint: one tensor per expert, or one
//! for all experts of a layer; and of layers without experts in the same model.

use super::llama;
use super::tensors::{Layouts, TensorSlice, stacked};
use crate::config::ModelConfig;
use crate::experts::Experts;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Names of a layer's tensors. Files of either kind can be read, but the usual names come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// `mlp`, as in Qwen's and DeepSeek's files.
    Mlp,
    /// `block_sparse_moe`, as in Mixtral's files.
    Mixtral,
}

/// Returns the possible layouts of a tensor, with the names of Qwen's files first.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    named(config, id, Naming::Mlp)
}

/// Returns the possible layouts of a tensor, with the names of Mixtral's files first.
pub(super) fn mixtral_layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    named(config, id, Naming::Mixtral)
}

fn named(config: &ModelConfig, id: TensorId, naming: Naming) -> Layouts {
    let (TensorId::Layer { layer, op, part }, Some(experts)) = (id, config.experts) else {
        return vec![llama::pieces(config, id)];
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    let one_of = |names: &[&str], shape: &[usize]| {
        let piece = TensorSlice::whole(at(names[0]), shape);
        vec![vec![TensorSlice { names: names.iter().map(|name| at(name)).collect(), ..piece }]]
    };
    let (hidden, count) = (config.hidden_size, experts.count);
    let network = |module: &str, name: &str| format!("{module}.{name}_proj.weight");
    match (op, part) {
        (Op::Router, TensorPart::Matrix) => {
            let names = [
                "mlp.gate",
                "block_sparse_moe.gate",
                "block_sparse_moe.router.layer",
                "mlp.router.gate",
            ];
            let mut names = names.map(|name| format!("{name}.weight"));
            names.rotate_left(usize::from(naming == Naming::Mixtral));
            one_of(&names.each_ref().map(String::as_str), &[count, hidden])
        }
        (Op::Router, TensorPart::Gain) => one_of(
            &[
                "mlp.gate.e_score_correction_bias",
                "mlp.e_score_correction_bias",
                "mlp.expert_bias",
                "block_sparse_moe.e_score_correction_bias",
                "block_sparse_moe.gate.e_score_correction_bias",
            ],
            &[count],
        ),
        (Op::SharedGate, _) => one_of(&["mlp.shared_expert_gate.weight"], &[1, hidden]),
        (Op::Gate | Op::Up | Op::Down, TensorPart::Matrix) if config.has_shared_expert() => {
            let (name, shape) = match op {
                Op::Gate => ("gate", [config.ffn_size, hidden]),
                Op::Up => ("up", [config.ffn_size, hidden]),
                _ => ("down", [hidden, config.ffn_size]),
            };
            let names = [
                "mlp.shared_experts",
                "mlp.shared_expert",
                "mlp.shared_mlp",
                "block_sparse_moe.shared_experts",
            ];
            let names = names.map(|at| network(at, name));
            one_of(&names.each_ref().map(String::as_str), &shape)
        }
        (Op::DenseGate | Op::DenseUp | Op::DenseDown, TensorPart::Matrix) => {
            let dense = experts.dense_ffn_size();
            let (name, shape) = match op {
                Op::DenseGate => ("gate", [dense, hidden]),
                Op::DenseUp => ("up", [dense, hidden]),
                _ => ("down", [hidden, dense]),
            };
            // The second name is that of files that transformers writes of Kimi Linear.
            let names = ["mlp", "block_sparse_moe"].map(|at| network(at, name));
            one_of(&names.each_ref().map(String::as_str), &shape)
        }
        (Op::ExpertGate | Op::ExpertUp | Op::ExpertDown, TensorPart::Matrix) => {
            of_experts(hidden, experts, op, naming, &at)
        }
        _ => vec![llama::pieces(config, id)],
    }
}

fn of_experts(
    hidden: usize,
    experts: Experts,
    op: Op,
    naming: Naming,
    at: &dyn Fn(&str) -> String,
) -> Layouts {
    let Experts { count, ffn_size, .. } = experts;
    let (own, (rows, columns), fused, (first, all)) = match op {
        Op::ExpertGate => (["gate_proj", "w1"], (ffn_size, hidden), 0, (0, 2 * ffn_size)),
        Op::ExpertUp => (["up_proj", "w3"], (ffn_size, hidden), 0, (ffn_size, 2 * ffn_size)),
        _ => (["down_proj", "w2"], (hidden, ffn_size), 1, (0, hidden)),
    };
    let one = |expert: usize| {
        let usual = at(&format!("mlp.experts.{expert}.{}.weight", own[0]));
        let mixtral = at(&format!("block_sparse_moe.experts.{expert}.{}.weight", own[1]));
        let piece = TensorSlice::whole(usual.clone(), &[rows, columns]);
        let names = match naming {
            Naming::Mixtral => vec![mixtral, usual],
            Naming::Mlp => vec![usual, mixtral],
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
