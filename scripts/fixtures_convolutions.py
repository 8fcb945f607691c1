"""Models of which most layers have a short gated convolution and the others attend: LFM2, with a dense
network and with experts."""

import torch

from fixtures_routers import SHARED, SIZES


def selection_biases(model):
    """Biases of the experts' scores are buffers, which are zeros by default."""
    generator = torch.Generator().manual_seed(70)
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


def no_selection_bias(model):
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.zero_()


def unit_head_gains(model):
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] in ("q_layernorm", "k_layernorm"):
            parameter.data.fill_(1)


def tap_removed(tap):
    def undo(model):
        for name, parameter in model.named_parameters():
            if name.endswith("conv.conv.weight"):
                parameter.data[..., tap] = 0

    return undo


def gate_replaced(which):
    """What is left of a third of the linear before the convolution: the last third in its place."""

    def undo(model):
        for name, parameter in model.named_parameters():
            if name.endswith("conv.in_proj.weight"):
                thirds = parameter.data.chunk(3)
                thirds[which].copy_(thirds[2])

    return undo


CONVOLUTIONS = {
    "norms of q and k": unit_head_gains,
    "oldest tap": tap_removed(0),
    "middle tap": tap_removed(-2),
    "B": gate_replaced(0),
    "C": gate_replaced(1),
}

MODELS = {
    # Convolutions of four rows in two of three layers; a network whose width of 80 is adjusted to
    # 2/3, times 1.5, and rounded up to 96; tied.
    "lfm2": {
        **SHARED,
        "seed": 71,
        "without": CONVOLUTIONS,
        "config": {
            **{key: value for key, value in SIZES.items() if key != "tie_word_embeddings"},
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "block_auto_adjust_ff_dim": True,
            "block_ff_dim": 80,
            "block_ffn_dim_multiplier": 1.5,
            "block_multiple_of": 32,
            "conv_L_cache": 4,
            "conv_bias": False,
            "layer_types": ["conv", "full_attention", "conv"],
            "norm_eps": 1e-5,
            "num_hidden_layers": 3,
            "rope_theta": 1000000.0,
            "tie_embedding": True,
        },
    },
    # Convolutions of three rows in three of four layers; the first layer is dense, the others have
    # the best three of eight experts by sigmoids plus a bias, and weights that sum up to 1.6.
    "lfm2_moe": {
        **SHARED,
        "seed": 72,
        "prepare": selection_biases,
        "f32": ("expert_bias",),
        "without": {
            **CONVOLUTIONS,
            "selection bias": no_selection_bias,
            "scale": {"routed_scaling_factor": 1.0},
            "norm_topk_prob": {"norm_topk_prob": False},
        },
        "config": {
            **{key: value for key, value in SIZES.items() if key != "tie_word_embeddings"},
            "architectures": ["Lfm2MoeForCausalLM"],
            "model_type": "lfm2_moe",
            "conv_L_cache": 3,
            "conv_bias": False,
            "intermediate_size": 80,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "moe_intermediate_size": 24,
            "norm_eps": 1e-5,
            "norm_topk_prob": True,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 4,
            "rope_theta": 1000000.0,
            "routed_scaling_factor": 1.6,
            "tie_embedding": False,
            "use_expert_bias": True,
        },
    },
}
