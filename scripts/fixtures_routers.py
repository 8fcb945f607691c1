"""Mixtures of experts whose routers are more than a softmax: sigmoids, a bias that selects but does not
weigh, groups, a factor, shared experts with and without a gate, layers without experts."""

import torch
from safetensors.torch import load_file, save_file

SHARED = {
    "dtype": torch.bfloat16,
    "exact_f16": True,
    "pick_eos": True,
    "gguf": True,
}
SIZES = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 260,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def biases(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    return [tensor for name, tensor in named if name.endswith("e_score_correction_bias")]


def no_selection_bias(model):
    for bias in biases(model):
        bias.data.zero_()


def no_shared_expert(model):
    for name, parameter in model.named_parameters():
        if "shared_expert" in name and "down_proj" in name:
            parameter.data.zero_()


def open_shared_gate(model):
    for name, parameter in model.named_parameters():
        if "shared_expert_gate" in name:
            parameter.data.zero_()


def unit_gains(model):
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] in ("q_norm", "k_norm"):
            parameter.data.fill_(1)


def no_attention_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("_proj.bias"):
            parameter.data.zero_()


def add_prediction_layer(folder):
    """A layer for multi-token prediction behind the last one, which transformers does not load."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    last = [name for name in tensors if name.startswith("model.layers.2.")]
    for name in last:
        tensors[name.replace("layers.2.", "layers.3.")] = tensors[name].clone()
    hidden = tensors["model.norm.weight"].shape[0]
    eh_proj = torch.ones(hidden, 2 * hidden, dtype=torch.bfloat16)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.3.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    tensors["model.layers.3.eh_proj.weight"] = eh_proj
    save_file(tensors, path, metadata={"format": "pt"})


MODELS = {
    # The best three of sixteen experts in two of four groups, by the sigmoids of their logits plus a
    # bias; the weights, of the sigmoids alone, sum up to 1.7. Two shared experts that are one network,
    # the first of three layers dense and wider, half of each head rotated, norms of q and k, biases
    # of q, k and v. Another layer, for multi-token prediction.
    "glm4_moe": {
        **SHARED,
        "seed": 60,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "after_save": add_prediction_layer,
        "without": {
            "selection bias": no_selection_bias,
            "groups": {"n_group": 1, "topk_group": 1},
            "scale": {"routed_scaling_factor": 1.0},
            "norm_topk_prob": {"norm_topk_prob": False},
            "shared experts": no_shared_expert,
            "norms of q and k": unit_gains,
            "biases": no_attention_biases,
            "half rope": {"partial_rotary_factor": 1.0},
        },
        "config": {
            **SIZES,
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "intermediate_size": 80,
            "moe_intermediate_size": 16,
            "n_group": 4,
            "n_routed_experts": 16,
            "n_shared_experts": 2,
            "norm_topk_prob": True,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 3,
            "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "routed_scaling_factor": 1.7,
            "topk_group": 2,
            "use_qk_norm": True,
        },
    },
    # The best three of twelve experts by sigmoids plus a bias, no shared one; q and k are normalised
    # over all heads at once, before six of the sixteen elements of a head are rotated.
    "minimax_m2": {
        **SHARED,
        "seed": 61,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "without": {
            "selection bias": no_selection_bias,
            "norms of q and k": unit_gains,
            "rotary_dim": {"rotary_dim": 16},
        },
        "config": {
            **SIZES,
            "architectures": ["MiniMaxM2ForCausalLM"],
            "model_type": "minimax_m2",
            "attn_type_list": [1, 1],
            "head_dim": 16,
            "intermediate_size": 32,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 2,
            "num_local_experts": 12,
            "qk_norm_type": "per_layer",
            "rms_norm_eps": 1e-6,
            "rope_theta": 5000000,
            "rotary_dim": 6,
            "scoring_func": "sigmoid",
            "shared_intermediate_size": 0,
            "use_mtp": True,
            "num_mtp_modules": 3,
            "mtp_transformer_layers": 1,
            "use_qk_norm": True,
            "use_routing_bias": True,
        },
    },
    # A softmax over eight experts, the best three not weighed anew; a shared expert with a gate;
    # biases of q, k and v.
    "qwen2_moe": {
        **SHARED,
        "seed": 62,
        "without": {
            "shared expert": no_shared_expert,
            "gate of the shared expert": open_shared_gate,
            "norm_topk_prob false": {"norm_topk_prob": True},
            "biases": no_attention_biases,
        },
        "config": {
            **SIZES,
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "decoder_sparse_step": 1,
            "intermediate_size": 96,
            "max_window_layers": 2,
            "mlp_only_layers": [],
            "moe_intermediate_size": 16,
            "norm_topk_prob": False,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 2,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "shared_expert_intermediate_size": 48,
            "sliding_window": None,
            "use_sliding_window": False,
        },
    },
    # The best three of twelve experts in one of two groups, weights that do not sum up to 1, biases
    # of all attention's linears. No window, as published.
    "dots1": {
        **SHARED,
        "seed": 63,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "without": {
            "selection bias": no_selection_bias,
            "groups": {"n_group": 1, "topk_group": 1},
            "scale": {"routed_scaling_factor": 1.0},
            "norm_topk_prob false": {"norm_topk_prob": True},
            "shared experts": no_shared_expert,
            "norms of q and k": unit_gains,
        },
        "config": {
            **SIZES,
            "architectures": ["Dots1ForCausalLM"],
            "model_type": "dots1",
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "intermediate_size": 64,
            "moe_intermediate_size": 16,
            "n_group": 2,
            "n_routed_experts": 12,
            "n_shared_experts": 1,
            "norm_topk_prob": False,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "routed_scaling_factor": 0.6,
            "sliding_window": None,
            "topk_group": 1,
        },
    },
    # A softmax over twelve experts and a bias that selects three; two shared experts; dense first
    # layer; a rope that rotates neighbours. Tied.
    "ernie4_5_moe": {
        **SHARED,
        "seed": 64,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "without": {
            "selection bias": no_selection_bias,
            "shared experts": no_shared_expert,
        },
        "config": {
            **SIZES,
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "model_type": "ernie4_5_moe",
            "head_dim": 16,
            "intermediate_size": 64,
            "moe_intermediate_size": 16,
            "moe_k": 3,
            "moe_layer_end_index": 2,
            "moe_layer_interval": 1,
            "moe_layer_start_index": 1,
            "moe_num_experts": 12,
            "moe_num_shared_experts": 2,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "use_bias": False,
        },
    },
    # As in DeepSeek's router without groups; a norm of each head of q and k; the first layer dense.
    "hy_v3": {
        **SHARED,
        "seed": 65,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "without": {
            "selection bias": no_selection_bias,
            "scale": {"router_scaling_factor": 1.0},
            "shared experts": no_shared_expert,
            "norms of q and k": unit_gains,
        },
        "config": {
            **SIZES,
            "architectures": ["HYV3ForCausalLM"],
            "model_type": "hy_v3",
            "attention_bias": False,
            "enable_moe_fp32_combine": True,
            "head_dim": 16,
            "intermediate_size": 80,
            "mlp_bias": False,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "moe_intermediate_size": 16,
            "num_experts": 10,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 3,
            "num_shared_experts": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 11158840.0,
            "router_scaling_factor": 2.826,
        },
        "gguf": False,
    },
}
