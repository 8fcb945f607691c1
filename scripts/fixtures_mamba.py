"""Models of which most layers have Mamba2 and the others attend: Granite 4 and Nemotron. transformers computes prompts
in chunks (of 8 here) and then row by row; prompts of 17 to 40 tokens go on beyond a chunk."""

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from fixtures_routers import SHARED, no_selection_bias, no_shared_expert

SIZES = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 260,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def slow_states(model):
    """A state keeps most of itself from row to row; time steps are far above their lower limits."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.sub_(2)


def filled(end, value):
    """What undoes a trait: the parameters whose names end so have one value."""

    def undo(model):
        for name, parameter in model.named_parameters():
            if name.endswith(end):
                parameter.data.fill_(value)

    return undo


def oldest_tap(model):
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.weight"):
            parameter.data[..., 0] = 0


def gated_norms(model):
    return [module for module in model.modules() if type(module).__name__.endswith("RMSNormGated")]


def one_group(model):
    for norm in gated_norms(model):
        norm.group_size = norm.weight.shape[0]


def unit_gated_gains(model):
    for norm in gated_norms(model):
        norm.weight.data.fill_(1)


def gate_after_norm(model):
    for norm in gated_norms(model):

        def forward(hidden, gate, norm=norm, inner=norm.forward):
            return inner(hidden) * silu(gate)

        norm.forward = forward


def no_shared_mlp(model):
    for name, parameter in model.named_parameters():
        if name.endswith("shared_mlp.output_linear.weight"):
            parameter.data.zero_()


def latents(model):
    """The linears before experts in a latent and after their sum, of each layer with experts."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("HMoE")]
    return [(layer.fc1_latent_proj.weight, layer.fc2_latent_proj.weight) for layer in layers]


def no_latent_before(model):
    for down, _ in latents(model):
        torch.nn.init.eye_(down)


def no_latent_after(model):
    for _, up in latents(model):
        torch.nn.init.eye_(up)


def swapped_latents(model):
    for down, up in latents(model):
        down.data, up.data = up.data.T.contiguous(), down.data.T.contiguous()


def add_prediction_layers(folder):
    """Layers for multi-token prediction, which transformers does not load."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    hidden = tensors["backbone.norm_f.weight"].shape[0]
    ones = torch.ones(hidden, 2 * hidden, dtype=torch.bfloat16)
    tensors["mtp.layers.0.eh_proj.weight"] = ones
    for name in ("enorm", "hnorm", "norm"):
        tensors[f"mtp.layers.0.{name}.weight"] = ones[0, :hidden].clone()
    save_file(tensors, path, metadata={"format": "pt"})


def no_routed_experts(model):
    for _, up in latents(model):
        up.data.zero_()


MAMBA = {
    "D": filled(".D", 0.0),
    "biases of dt": filled("dt_bias", 0.0),
    "rates of forgetting": filled("A_log", 0.0),
    "biases of the convolution": filled("conv1d.bias", 0.0),
    "oldest tap": oldest_tap,
    "gains of the gated norm": unit_gated_gains,
    "gate before the norm": gate_after_norm,
}

NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "bos_token_id": 1,
    "chunk_size": 8,
    "conv_kernel": 4,
    "eos_token_id": 2,
    "expand": 2,
    "head_dim": 12,
    "hidden_size": 32,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 12,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 6,
    "mamba_proj_bias": False,
    "max_position_embeddings": 128,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "n_groups": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "residual_in_fp32": False,
    "ssm_state_size": 10,
    "tie_word_embeddings": False,
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 260,
}

MODELS = {
    # Three of four layers with Mamba2 of two groups, one that attends without rope; the best three of
    # eight experts and a shared expert of another width; tied.
    "granite_hybrid": {
        **SHARED,
        "seed": 80,
        "prepare": slow_states,
        "without": {
            **MAMBA,
            "groups of the gated norm": one_group,
            "shared expert": no_shared_mlp,
            "absence of positions": {"position_embedding_type": "rope"},
            "embedding_multiplier": {"embedding_multiplier": 1.0},
            "attention_multiplier": {"attention_multiplier": 0.8},
            "residual_multiplier": {"residual_multiplier": 1.0},
        },
        "config": {
            **SIZES,
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "attention_bias": False,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 2.0,
            "logits_scaling": 3.0,
            "residual_multiplier": 0.7,
            "init_method": "mup",
            "intermediate_size": 24,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "mamba_chunk_size": 8,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 12,
            "mamba_expand": 2,
            "mamba_n_groups": 2,
            "mamba_n_heads": 4,
            "mamba_proj_bias": False,
            "normalization_function": "rmsnorm",
            "num_experts_per_tok": 3,
            "num_hidden_layers": 4,
            "num_local_experts": 8,
            "position_embedding_type": "nope",
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "shared_intermediate_size": 40,
            "tie_word_embeddings": True,
        },
    },
    # Without experts: the shared expert alone. A layer that attends first, with rope.
    "granite_hybrid_dense": {
        **SHARED,
        "seed": 81,
        "prepare": slow_states,
        "without": {
            **MAMBA,
            "rope": {"position_embedding_type": "nope"},
            "residual_multiplier": {"residual_multiplier": 1.0},
        },
        "config": {
            **SIZES,
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "attention_bias": False,
            "attention_multiplier": 0.35,
            "embedding_multiplier": 1.5,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.8,
            "intermediate_size": 24,
            "layer_types": ["attention", "mamba", "mamba"],
            "mamba_chunk_size": 8,
            "mamba_conv_bias": True,
            "mamba_d_conv": 3,
            "mamba_d_head": "auto",
            "mamba_d_state": 20,
            "mamba_expand": 3,
            "mamba_n_groups": 1,
            "mamba_n_heads": 8,
            "num_experts_per_tok": 0,
            "num_hidden_layers": 3,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "rope_theta": 10000.0,
            "shared_intermediate_size": 48,
            "tie_word_embeddings": False,
        },
    },
    # Layers of a single mixer: two of Mamba2 in a row, networks with a squared ReLU, attention without
    # rope.
    "nemotron_h": {
        **SHARED,
        "seed": 82,
        "prepare": slow_states,
        "without": {
            **MAMBA,
            "groups of the gated norm": one_group,
            "square": {"mlp_hidden_act": "relu"},
        },
        "config": {
            **NEMOTRON,
            "hybrid_override_pattern": "M-MM*-M-",
            "intermediate_size": 48,
            "num_hidden_layers": 8,
        },
    },
    # Experts in the place of networks: the best three of eight in one of two groups, by the sigmoids of
    # their logits plus a bias, with weights that sum up to 1.7, and a shared one of another width.
    "nemotron_h_moe": {
        **SHARED,
        "seed": 83,
        "prepare": slow_states,
        "f32": ("e_score_correction_bias", "mixer.gate.weight"),
        "without": {
            **MAMBA,
            "groups of the gated norm": one_group,
            "square": {"mlp_hidden_act": "relu"},
            "selection bias": no_selection_bias,
            "groups of experts": {"n_group": 1, "topk_group": 1},
            "scale": {"routed_scaling_factor": 1.0},
            "norm_topk_prob": {"norm_topk_prob": False},
            "shared expert": no_shared_expert,
        },
        "config": {
            **NEMOTRON,
            "layers_block_type": ["mamba", "moe", "mamba", "attention", "moe", "mamba", "moe"],
            "intermediate_size": 20,
            "moe_intermediate_size": 20,
            "moe_shared_expert_intermediate_size": 28,
            "n_group": 2,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 7,
            "routed_scaling_factor": 1.7,
            "topk_group": 1,
        },
    },
    # Experts in a latent: the best five of sixteen, in a single group, compute rows narrower than the
    # model's and write such rows, while the router and the shared expert see the model's. Other layers,
    # for multi-token prediction.
    "nemotron_h_latent": {
        **SHARED,
        "seed": 84,
        "prepare": slow_states,
        "after_save": add_prediction_layers,
        "f32": ("e_score_correction_bias", "mixer.gate.weight"),
        "without": {
            **MAMBA,
            "square": {"mlp_hidden_act": "relu"},
            "selection bias": no_selection_bias,
            "scale": {"routed_scaling_factor": 1.0},
            "norm_topk_prob": {"norm_topk_prob": False},
            "shared expert": no_shared_expert,
            "routed experts": no_routed_experts,
            "linear before the experts": no_latent_before,
            "linear after the experts": no_latent_after,
            "order of the two linears": swapped_latents,
        },
        "config": {
            **NEMOTRON,
            "hybrid_override_pattern": "MEM*EME",
            "intermediate_size": 28,
            "moe_intermediate_size": 28,
            "moe_latent_size": 20,
            "moe_shared_expert_intermediate_size": 24,
            "mtp_hybrid_override_pattern": "*E",
            "n_group": 1,
            "n_routed_experts": 16,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 5,
            "num_hidden_layers": 7,
            "num_nextn_predict_layers": 1,
            "routed_scaling_factor": 2.4,
            "topk_group": 1,
        },
    },
}
