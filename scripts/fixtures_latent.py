"""Multi-head latent attention, with all of its sizes different, in front of DeepSeek's routers and
Mistral's."""

from transformers import AutoModelForCausalLM, Mistral4Config, Mistral4ForCausalLM

import fixtures_nested
import fixtures_packed
from fixtures_routers import SHARED, SIZES, no_selection_bias, no_shared_expert

# transformers has it as a part of a model of text and images alone.
AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)

# Norms of latents, which are not the layers' own.
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
YARN_OF_V2 = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
# A factor of queries that grows from position 16 on, and a ramp over all pairs.
MISTRAL_ROPE = {
    "beta_fast": 1.0,
    "beta_slow": 0.1,
    "factor": 8.0,
    "llama_4_scaling_beta": 0.4,
    "max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "partial_rotary_factor": 0.4,
    "rope_theta": 100.0,
    "rope_type": "yarn",
    "type": "yarn",
}


def layer_eps(model):
    """Gives the norms of latents the epsilon that the configuration has for all others."""
    for name, module in model.named_modules():
        if name.endswith(LATENT_NORMS):
            module.variance_epsilon = model.config.rms_norm_eps


def unit_latent_gains(model):
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] in LATENT_NORMS:
            parameter.data.fill_(1)


ATTENTION = {
    "attention_bias": False,
    "kv_lora_rank": 24,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}
ROUTER = {
    "intermediate_size": 80,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "routed_scaling_factor": 1.7,
    "topk_group": 2,
}
F32 = ("e_score_correction_bias", "mlp.gate.weight")


def kimi_k2(form, quantization, seed):
    return {
        **SHARED,
        **fixtures_packed.functions(form),
        "seed": seed,
        "f32": F32,
        "gguf": False,
        "without": {
            "selection bias": no_selection_bias,
            "shared expert": no_shared_expert,
            "scales of groups": fixtures_packed.scales_of_first_groups(form),
        },
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "first_k_dense_replace": 1,
            "hidden_size": 64,
            "moe_intermediate_size": 64,
            "n_group": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "q_lora_rank": 28,
            "quantization_config": quantization,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 50000.0,
            "topk_group": 1,
        },
    }


def kimi_k25(seed):
    text = kimi_k2(fixtures_packed.Integers, fixtures_packed.QUANTIZATION, seed)
    config = {key: value for key, value in text["config"].items() if key != "architectures"}
    return {
        **text,
        **fixtures_nested.around(fixtures_packed.functions(fixtures_packed.Integers)),
        "vision": {"vision_tower.patch_embed.proj.weight": (16, 3, 14, 14), "mm_projector.pre_norm.weight": (16,)},
        "config": {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "bos_token_id": config["bos_token_id"],
            "eos_token_id": config["eos_token_id"],
            "ignore_index": -100,
            "media_placeholder_token_id": 259,
            "pad_token_id": 0,
            "text_config": config,
            "use_unified_vision_chunk": True,
            "video_placeholder": "<|video|>",
            "vision_config": {"mm_projector_type": "patchmerger", "patch_size": 14, "vt_hidden_size": 16},
        },
    }


MODELS = {
    # YaRN beyond 32 positions, with a factor of the scores; the first layer dense; an epsilon of the
    # layers' norms that matters.
    "deepseek_v3": {
        **SHARED,
        "seed": 80,
        "f32": F32,
        "without": {
            "selection bias": no_selection_bias,
            "groups": {"n_group": 1, "topk_group": 1},
            "shared experts": no_shared_expert,
            "epsilon of latents": layer_eps,
            "norms of latents": unit_latent_gains,
            "rope of neighbours": {"rope_interleave": False},
            "factor of scores": {"rope_scaling": {**YARN, "mscale_all_dim": 0.0}},
            "yarn": {"rope_scaling": None},
        },
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "first_k_dense_replace": 1,
            "q_lora_rank": 28,
            "rms_norm_eps": 1e-2,
            "rope_scaling": YARN,
            "rope_theta": 10000.0,
        },
    },
    # Kimi K2 Thinking: no groups of experts, whose matrices are integers of 4 bits.
    "kimi_k2_int4": kimi_k2(fixtures_packed.Integers, fixtures_packed.QUANTIZATION, 85),
    # The same with 4-bit floats.
    "kimi_k2_nvfp4": kimi_k2(fixtures_packed.Floats, fixtures_packed.MODELOPT, 86),
    # Kimi K2.5: Kimi K2 Thinking inside a model of text and images, whose fields are as published.
    "kimi_k25": kimi_k25(87),
    # A softmax over sixteen experts, the best three in two of four groups by their largest scores; the
    # weights do not sum up to 1. YaRN with a factor of scores, but none of sines and cosines.
    "deepseek_v2": {
        **SHARED,
        "seed": 83,
        "f32": ("mlp.gate.weight",),
        "old_gguf": True,
        "without": {
            "groups": {"topk_method": "greedy"},
            "scale": {"routed_scaling_factor": 1.0},
            "shared experts": no_shared_expert,
            "factor of scores": {"rope_scaling": {**YARN_OF_V2, "mscale_all_dim": 0.0}},
        },
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
            "q_lora_rank": 28,
            "rms_norm_eps": 1e-5,
            "rope_scaling": YARN_OF_V2,
            "rope_theta": 10000.0,
            "topk_method": "group_limited_greedy",
        },
    },
    # Queries that are computed from the layer's input, and a rope that rotates halves.
    "deepseek_v3_full_query": {
        **SHARED,
        "seed": 81,
        "f32": F32,
        "gguf": False,
        "without": {"rope of halves": {"rope_interleave": True}},
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
            "rms_norm_eps": 1e-5,
            "rope_interleave": False,
            "rope_scaling": None,
            "rope_theta": 50000.0,
        },
    },
    # No groups; layers with experts by a list.
    "glm4_moe_lite": {
        **SHARED,
        "seed": 82,
        "f32": F32,
        "without": {
            "selection bias": no_selection_bias,
            "scale": {"routed_scaling_factor": 1.0},
            "shared expert": no_shared_expert,
        },
        "config": {
            **SIZES,
            **ATTENTION,
            **ROUTER,
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "model_type": "glm4_moe_lite",
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_group": 1,
            "q_lora_rank": 28,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "topk_group": 1,
        },
    },
    # The text model inside a model of text and images, as published: queries that grow with their
    # position; a softmax over sixteen experts, the best three in two of four groups by sums of two,
    # weights that sum up to 1.7; all layers with experts, stored in one tensor.
    "mistral4": {
        **SHARED,
        "seed": 84,
        "save": fixtures_nested.save,
        "load": fixtures_nested.load,
        "vision": fixtures_nested.PIXTRAL_SHAPES,
        "without": {
            "factor of queries": {"rope_parameters": {**MISTRAL_ROPE, "llama_4_scaling_beta": 0.0}},
            "yarn": {"rope_parameters": {**MISTRAL_ROPE, "factor": 1.0}},
            "factor of scores": {"rope_parameters": {**MISTRAL_ROPE, "mscale_all_dim": 0.0}},
            "rope of neighbours": {"rope_interleave": False},
            "norms of latents": unit_latent_gains,
            "groups": {"n_group": 1, "topk_group": 1},
            "sum of weights": {"norm_topk_prob": False},
            "scale": {"routed_scaling_factor": 1.0},
            "shared expert": no_shared_expert,
        },
        "config": {
            **fixtures_nested.PIXTRAL_CONFIG,
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": {
                **SIZES,
                **ATTENTION,
                **ROUTER,
                "model_type": "mistral4",
                "first_k_dense_replace": 0,
                "n_shared_experts": 1,
                "q_lora_rank": 28,
                "rms_norm_eps": 1e-5,
                "rope_interleave": True,
                "rope_parameters": MISTRAL_ROPE,
            },
        },
    },
}
