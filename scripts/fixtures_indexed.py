"""Latent attention to positions that an indexer selects, fewer than the prompts have; an indexer whose
rope is that of attention or is not, and layers that share selections."""

import contextlib
import sys

import torch
from torch.nn import functional

from fixtures_latent import ATTENTION, F32, ROUTER, YARN
from fixtures_routers import SHARED, SIZES, no_selection_bias

# How far the last position that a row selects is ahead of the next one, where an answer is no close call.
INDEX_MARGIN = 2e-5
INDEXER = {"index_head_dim": 14, "index_n_heads": 6, "index_topk": 9}
NEIGHBOURS, HALVES = "apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb"


def indexers(model):
    return [module for module in model.modules() if type(module).__name__.endswith("Indexer")]


@contextlib.contextmanager
def replaced(owner, name, value):
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield kept
    finally:
        setattr(owner, name, kept)


def each_forward(model, owner_of, name, value_of):
    """Replaces a name while an indexer runs."""
    for indexer in indexers(model):
        owner, forward = owner_of(indexer), indexer.forward

        def replacing(*inputs, owner=owner, forward=forward, **named):
            with replaced(owner, name, value_of(getattr(owner, name))):
                return forward(*inputs, **named)

        indexer.forward = replacing


def watch(model, report):
    """Calls `report` with the smallest distance of selected positions from others, wherever some row has
    others."""

    def recording(topk):
        def record(scores, count, **named):
            if scores.shape[-1] > count:
                best = topk(scores, count + 1, **named).values
                # Positions after a row's own have the least of all numbers.
                gaps = (best[..., -2] - best[..., -1])[best[..., -1] > -1e30]
                report(gaps.min().item() if gaps.numel() else float("inf"))
            return topk(scores, count, **named)

        return record

    each_forward(model, lambda _: torch.Tensor, "topk", recording)


def no_positive_parts(model):
    each_forward(model, lambda _: functional, "relu", lambda _: lambda scores: scores)


def rope_like(name):
    """Rotates the indexer's heads as `name` does."""

    def undo(model):
        def owner(indexer):
            return sys.modules[type(indexer).__module__]

        other = {NEIGHBOURS: HALVES, HALVES: NEIGHBOURS}[name]
        module = owner(indexers(model)[0])
        from transformers.models.deepseek_v32 import modeling_deepseek_v32

        value = getattr(module, name, None) or getattr(modeling_deepseek_v32, name)
        each_forward(model, owner, other, lambda _: value)

    return undo


class Ones(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight = linear.weight

    def forward(self, rows):
        return rows.new_ones((*rows.shape[:-1], self.weight.shape[0]))


def unit_weights(model):
    for indexer in indexers(model):
        indexer.weights_proj = Ones(indexer.weights_proj)


def no_key_bias(model):
    for indexer in indexers(model):
        indexer.k_norm.bias.data.zero_()


def unit_key_gains(model):
    for indexer in indexers(model):
        indexer.k_norm.weight.data.fill_(1)


UNDONE = {
    "selection of positions": {"index_topk": 128},
    "positive parts": no_positive_parts,
    "weights of heads": unit_weights,
    "bias of keys": no_key_bias,
    "gains of keys": unit_key_gains,
    "selection bias": no_selection_bias,
}
GLM_LAYERS = ["dense", "sparse", "sparse"]
GLM_ROPE = {"rope_theta": 100.0, "rope_type": "default"}

MODELS = {
    # YaRN; the indexer rotates halves, attention neighbours.
    "deepseek_v32": {
        **SHARED,
        "seed": 90,
        "f32": F32,
        "gguf": False,
        "without": {**UNDONE, "rope of halves": rope_like(NEIGHBOURS)},
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            **INDEXER,
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "first_k_dense_replace": 1,
            "q_lora_rank": 28,
            "rms_norm_eps": 1e-2,
            "rope_scaling": YARN,
            "rope_theta": 100.0,
        },
    },
    # The indexer rotates neighbours, as attention does; each layer has one.
    "glm_moe_dsa": {
        **SHARED,
        "seed": 91,
        "f32": F32,
        "without": {**UNDONE, "rope of neighbours": rope_like(HALVES)},
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            **INDEXER,
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "mlp_layer_types": GLM_LAYERS,
            "n_group": 1,
            "q_lora_rank": 28,
            "rms_norm_eps": 1e-5,
            "rope_parameters": GLM_ROPE,
            "topk_group": 1,
        },
    },
    # Layers that attend to the positions that the last layer with an indexer has selected.
    "glm_moe_dsa_shared": {
        **SHARED,
        "seed": 92,
        "f32": F32,
        "gguf": False,
        "without": {"selection of positions": {"index_topk": 128}},
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            **INDEXER,
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "indexer_types": ["full", "shared", "full", "shared", "shared"],
            "mlp_layer_types": [*GLM_LAYERS, "dense", "sparse"],
            "n_group": 1,
            "num_hidden_layers": 5,
            "q_lora_rank": 28,
            "rms_norm_eps": 1e-5,
            "rope_parameters": GLM_ROPE,
            "topk_group": 1,
        },
    },
}
