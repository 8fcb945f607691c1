"""Kimi Linear: layers whose state decays by channel (Kimi delta attention), latent attention without rope,
DeepSeek's router. transformers computes prompts in chunks of 64 and then row by row; prompts of 40 and 80
tokens go on beyond a chunk, one in its answer and one from the start."""

import torch
from safetensors.torch import load_file, save_file

import fixtures_routers
from fixtures_latent import ATTENTION, layer_eps, unit_latent_gains
from fixtures_mamba import filled
from fixtures_routers import SHARED, no_selection_bias, no_shared_expert


def slow_states(model):
    """A state keeps most of itself from row to row, some channels more than others."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.sub_(1)
        if name.endswith("dt_bias"):
            parameter.data.mul_(5)


def published_names(folder):
    """The networks of layers without experts, which transformers renames when it saves a model."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    old, new = ".0.block_sparse_moe.", ".0.mlp."
    tensors = {name.replace(old, new): value for name, value in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def modules(model, kind):
    return [module for module in model.modules() if type(module).__name__ == kind]


def one_decay(model):
    """All channels of a head decay by their mean."""
    for gate in modules(model, "KimiLinearForgetGate"):

        def forward(hidden, inner=gate.forward):
            decays = inner(hidden)
            return decays.mean(-1, keepdim=True).expand_as(decays)

        gate.forward = forward


def silu_gate(model):
    for norm in modules(model, "KimiLinearRMSNormGated"):
        norm.activation = "silu"


def usual_eps(model):
    for norm in modules(model, "KimiLinearRMSNormGated"):
        norm.variance_epsilon = 1e-6


def oldest_tap(model):
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.weight"):
            parameter.data[..., 0] = 0


def one_convolution(model):
    """Keys and values pass through the convolution of queries."""
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.weight"):
            parameter.data.copy_(parameter.data.chunk(3)[0].repeat(3, 1, 1))


def rotated_keys(model):
    """The part of a key that other models rotate grows with its position."""
    for attention in modules(model, "KimiLinearAttention"):

        def expand(latent, rest, inner=attention.expand_kv):
            turned = rest * torch.cos(torch.arange(rest.shape[2]))[:, None]
            return inner(latent, turned)

        attention.expand_kv = expand


def no_shared_key(model):
    for name, parameter in model.named_parameters():
        if name.endswith("kv_a_proj_with_mqa.weight"):
            parameter.data[ATTENTION["kv_lora_rank"] :] = 0


MODELS = {
    # Three layers with states of four heads of 12, two with latent attention whose queries are computed
    # from the layer's input; the first dense, the others with the best three of sixteen experts in two of
    # four groups and a shared one; epsilons of norms that matter.
    "kimi_linear": {
        **SHARED,
        "seed": 90,
        "f32": ("e_score_correction_bias", "mlp.gate.weight", "A_log", "dt_bias"),
        "prepare": slow_states,
        "scale": {"kv_a_proj": 0.3},
        "after_save": published_names,
        "lengths": [1, 2, 3, 5, 8, 13, 17, 31, 40, 80],
        "without": {
            "decays of channels": one_decay,
            "rates of forgetting": filled("A_log", 0.0),
            "biases of the decays": filled("dt_bias", 0.0),
            "gains of the heads' norm": filled("o_norm.weight", 1.0),
            "epsilon of the heads' norm": usual_eps,
            "sigmoid of the gate": silu_gate,
            "oldest tap": oldest_tap,
            "three convolutions": one_convolution,
            "absence of positions": rotated_keys,
            "shared part of keys": no_shared_key,
            "norms of latents": unit_latent_gains,
            "epsilon of latents": layer_eps,
            "selection bias": no_selection_bias,
            "groups": {"num_expert_group": 1, "topk_group": 1},
            "scale": {"routed_scaling_factor": 1.0},
            "sum of weights": {"moe_renormalize": False},
            "shared experts": no_shared_expert,
        },
        "config": {
            **{k: v for k, v in fixtures_routers.SIZES.items() if k != "max_position_embeddings"},
            **{k: v for k, v in ATTENTION.items() if k != "attention_bias"},
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "first_k_dense_replace": 1,
            "head_dim": 8,
            "intermediate_size": 80,
            "linear_attn_config": {
                "full_attn_layers": [3, 5],
                "head_dim": 12,
                "kda_layers": [1, 2, 4],
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "mla_use_nope": True,
            "model_max_length": 128,
            "moe_intermediate_size": 16,
            "moe_layer_freq": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 4,
            "num_experts": 16,
            "num_experts_per_token": 3,
            "num_hidden_layers": 5,
            "num_nextn_predict_layers": 0,
            "num_shared_experts": 2,
            "pad_token_id": 0,
            "q_lora_rank": None,
            "rms_norm_eps": 3e-2,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "routed_scaling_factor": 1.7,
            "topk_group": 2,
            "use_grouped_topk": True,
        },
    },
}
