"""Gemma 4: heads of two sizes, a norm of each head of v, and a factor of the residual stream per layer;
values by the matrix of keys, experts next to a dense network, shared caches, inputs of each layer."""

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from fixtures_routers import SHARED

PREFIX = "model.language_model."
SIZES = {
    "attention_bias": False,
    "final_logit_softcapping": 4.0,
    "head_dim": 12,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.5,
            "rope_theta": 100.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 50.0, "rope_type": "default"},
    },
    "sliding_window": 9,
    "vocab_size": 260,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
WINDOWS = "sliding_attention"
ALL = "full_attention"


def scalars(model):
    return [tensor for name, tensor in model.named_buffers() if name.endswith("layer_scalar")]


def factors_of_layers(model):
    """Factors of the residual stream are buffers, which are ones by default."""
    for layer, scalar in enumerate(scalars(model)):
        scalar.fill_(0.625 + 0.125 * (layer * 3 % 7))


def unit_scalars(model):
    for scalar in scalars(model):
        scalar.fill_(1)


def modules(model, kind):
    return [module for module in model.modules() if type(module).__name__ == kind]


def filled(end, value):
    """What undoes a trait: the parameters whose names end so have one value."""

    def undo(model):
        for name, parameter in model.named_parameters():
            if name.endswith(end):
                parameter.data.fill_(value)

    return undo


def no_value_norm(model):
    for attention in modules(model, "Gemma4TextAttention"):
        if hasattr(attention, "v_norm"):
            attention.v_norm = nn.Identity()


def scaled_scores(model):
    for attention in modules(model, "Gemma4TextAttention"):
        attention.scaling = attention.head_dim**-0.5


def no_dense_network(model):
    for name, parameter in model.named_parameters():
        if name.endswith("post_feedforward_layernorm_1.weight"):
            parameter.data.zero_()


def unscaled_embedding(model):
    for table in modules(model, "Gemma4TextScaledWordEmbedding"):
        table.embed_scale.fill_(1)


def no_token_inputs(model):
    model.model.embed_tokens_per_layer.weight.data.zero_()


def no_context_inputs(model):
    model.model.per_layer_projection_norm.weight.data.zero_()


def own_caches(model):
    """The first layer of a kind lends its keys instead of the last one."""
    text = model.model
    kinds = text.config.layer_types
    for layer, decoder in enumerate(text.layers):
        attention = decoder.self_attn
        attention.store_full_length_kv = layer == kinds.index(kinds[layer])


def save(model, folder, spec):
    """Stores the text model's tensors as models of text, images and sounds have them, next to some of
    the others."""
    generator = torch.Generator().manual_seed(spec["seed"])
    others = {
        "model.vision_tower.patch_embedder.input_proj.weight": (16, 27),
        "model.vision_tower.encoder.layers.0.input_layernorm.weight": (16,),
        "model.embed_vision.embedding_projection.weight": (32, 16),
        "model.audio_tower.output_proj.weight": (16, 16),
    }
    vision = {name: torch.randn(shape, generator=generator) for name, shape in others.items()}
    text = {
        PREFIX + name.removeprefix("model."): value
        for name, value in model.state_dict().items()
        if not name.startswith("lm_head")
    }
    stored = {name: value.to(spec["dtype"]).contiguous() for name, value in {**vision, **text}.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, config, options):
    """The text model in f32, from what `save` stored."""
    text = AutoConfig.for_model(**config["text_config"])
    model = AutoModelForCausalLM.from_config(text, dtype=torch.float32, **options)
    stored = load_file(folder / "model.safetensors")
    text = {k.removeprefix(PREFIX): v.float() for k, v in stored.items() if k.startswith(PREFIX)}
    weights = {f"model.{name}": value for name, value in text.items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


TRAITS = {
    "windows": {"sliding_window": 4096},
    "factors of layers": unit_scalars,
    "norms of v": no_value_norm,
    "unscaled scores": scaled_scores,
    "scale of the embedding": unscaled_embedding,
    "gains of q and k": filled(("q_norm.weight", "k_norm.weight"), 1.0),
    "GELU": {"hidden_activation": "silu"},
    "pairs that are not rotated": {
        "rope_parameters": {
            **SIZES["rope_parameters"],
            ALL: {"rope_theta": 100.0, "rope_type": "default"},
        }
    },
    "base of layers with a window": {
        "rope_parameters": {
            **SIZES["rope_parameters"],
            WINDOWS: {"rope_theta": 1000000.0, "rope_type": "default"},
        }
    },
}

DENSE = {
    **SIZES,
    "attention_k_eq_v": True,
    "global_head_dim": 20,
    "hidden_size_per_layer_input": 0,
    "layer_types": [WINDOWS, WINDOWS, ALL, WINDOWS, ALL],
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 0,
}
FIXTURE = {**SHARED, "scale": {"embed": 0.25}, "prepare": factors_of_layers}

MODELS = {
    # Heads of 12, two of k and v, in layers with a window of 9, and of 20, one of k and v, in the
    # others, in which the matrix of keys is also that of values and half of the pairs are rotated.
    "gemma4": {
        **FIXTURE,
        "seed": 90,
        "without": TRAITS,
        "config": {
            **DENSE,
            "architectures": ["Gemma4ForCausalLM"],
            "model_type": "gemma4_text",
            "enable_moe_block": False,
        },
    },
    # The same form within a model of text, images and sounds, with the best three of eight experts
    # next to the dense network of each layer.
    "gemma4_moe": {
        **FIXTURE,
        "seed": 91,
        "scale": {"embed": 0.25, "router.proj": 4},
        "save": save,
        "load": load,
        "without": {
            **TRAITS,
            "gain of the router's norm": filled("router.scale", 1.0),
            "factors of experts": filled("per_expert_scale", 1.0),
            "dense network": no_dense_network,
            "norm before experts": filled("pre_feedforward_layernorm_2.weight", 1.0),
            "norm after experts": filled("post_feedforward_layernorm_2.weight", 1.0),
            "norm of the sum": filled("post_feedforward_layernorm.weight", 1.0),
        },
        "config": {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "audio_config": None,
            "audio_token_id": 251,
            "boa_token_id": 252,
            "boi_token_id": 253,
            "eoa_token_index": 254,
            "eoi_token_id": 255,
            "eos_token_id": [2],
            "image_token_id": 256,
            "video_token_id": 257,
            "text_config": {
                **DENSE,
                "model_type": "gemma4_text",
                "enable_moe_block": True,
                "moe_intermediate_size": 20,
                "num_experts": 8,
                "top_k_experts": 3,
                "use_bidirectional_attention": "vision",
            },
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vision_config": {"model_type": "gemma4_vision", "hidden_size": 16},
            "vision_soft_tokens_per_image": 4,
        },
    },
    # The last three of eight layers attend to the caches of earlier ones and have networks of twice the
    # width; inputs of 8 elements for each layer.
    "gemma4_shared": {
        **FIXTURE,
        "seed": 92,
        "without": {
            **TRAITS,
            "inputs of tokens": no_token_inputs,
            "inputs of the embedding": no_context_inputs,
            "norm of inputs": filled("post_per_layer_input_norm.weight", 1.0),
            "the last layers' keys": own_caches,
        },
        "config": {
            **SIZES,
            "architectures": ["Gemma4ForCausalLM"],
            "model_type": "gemma4_text",
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "global_head_dim": 20,
            "hidden_size_per_layer_input": 8,
            "layer_types": [WINDOWS, ALL, WINDOWS, WINDOWS, ALL, WINDOWS, WINDOWS, ALL],
            "num_hidden_layers": 8,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "vocab_size_per_layer_input": 260,
        },
    },
}
