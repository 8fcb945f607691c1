"""Mixtures of experts. transformers' eager experts: each expert's rows, experts in ascending order."""

import torch

import fixtures_mxfp4

SHARED = {
    "dtype": torch.bfloat16,
    "exact_f16": True,
    "pick_eos": True,
    "gguf": True,
}


def unit_gains(model):
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] in ("q_norm", "k_norm"):
            parameter.data.fill_(1)


def no_sinks(model):
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e9)


def no_clamp(model):
    for module in model.modules():
        if hasattr(module, "limit"):
            module.limit = 1e9


# gpt-oss: a sink beside each head's scores, a window of 12 in every other layer, YaRN without rounded
# bounds, biases everywhere, the best two of five experts by a softmax over those, gate and up in
# alternating rows, both clamped (so large weights, or nothing would be), `up + 1`. A GGUF has no key
# for the bounds: for this architecture they are not rounded, as here and in OpenAI's code; llama.cpp
# rounds them all the same, and else gives the same tokens.
GPT_OSS = {
    **SHARED,
    "seed": 34,
    "experts_input_first": True,
    "scale": {"gate_up_proj": 2.0, "down_proj": 0.25},
    "prepare": fixtures_mxfp4.round_experts,
    "config": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initial_context_length": 32,
        "intermediate_size": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "experts_per_token": 2,
        "num_experts_per_tok": 2,
        "num_local_experts": 5,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150,
        "sliding_window": 12,
        "swiglu_limit": 7.0,
        "vocab_size": 260,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "torch_dtype": "bfloat16",
    },
}

MODELS = {
    # A softmax over eight experts, of which the best two are weighed anew. No window.
    "mixtral": {
        **SHARED,
        "seed": 30,
        "config": {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 128,
            "sliding_window": None,
            "vocab_size": 260,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    },
    # q and k are normalised over all heads at once; the best three of eleven experts are not weighed
    # anew.
    "olmoe": {
        **SHARED,
        "seed": 31,
        "without": {
            "norms of q and k": unit_gains,
            "norm_topk_prob false": {"norm_topk_prob": True},
        },
        "config": {
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "attention_bias": False,
            "clip_qkv": None,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_experts": 11,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "max_position_embeddings": 128,
            "vocab_size": 260,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "eos_token_id": 2,
            "pad_token_id": 1,
            "torch_dtype": "bfloat16",
        },
    },
    # The best four of sixteen experts are weighed anew; norms of each head of q and k; heads wider
    # than the hidden state. `intermediate_size` is of layers without experts, which there are none
    # of.
    "qwen3_moe": {
        **SHARED,
        "seed": 32,
        "without": {
            "norms of q and k": unit_gains,
            "norm_topk_prob": {"norm_topk_prob": False},
        },
        "config": {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 32,
            "intermediate_size": 96,
            "max_position_embeddings": 128,
            "max_window_layers": 2,
            "mlp_only_layers": [],
            "moe_intermediate_size": 16,
            "norm_topk_prob": True,
            "num_attention_heads": 4,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
            "vocab_size": 260,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    },
    # Granite's four scalars; gate and up of all experts in one tensor; a softmax over the best three
    # of eight. Tied.
    "granite_moe": {
        **SHARED,
        "seed": 33,
        "without": {
            "embedding_multiplier": {"embedding_multiplier": 1.0},
            "attention_multiplier": {"attention_multiplier": 0.35},
            "residual_multiplier": {"residual_multiplier": 1.0},
        },
        "config": {
            "architectures": ["GraniteMoeForCausalLM"],
            "model_type": "granitemoe",
            "attention_bias": False,
            "attention_multiplier": 0.17,
            "embedding_multiplier": 2.0,
            "logits_scaling": 3.0,
            "residual_multiplier": 0.7,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "max_position_embeddings": 128,
            "vocab_size": 260,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    },
    # In bf16, as published by others than OpenAI: experts are [in, out].
    "gpt_oss": {
        **GPT_OSS,
        "without": {
            "sinks": no_sinks,
            "clamps": no_clamp,
            "sliding_window": {"sliding_window": 4096},
            "full layers": {"layer_types": ["sliding_attention"] * 2},
            "rope_scaling": {"rope_scaling": None},
            "truncate false": {
                "rope_scaling": {**GPT_OSS["config"]["rope_scaling"], "truncate": True}
            },
        },
    },
    # The same weights and answers: the experts' matrices in blocks of 32 four-bit numbers with a
    # scale (MXFP4), as in OpenAI's checkpoints.
    "gpt_oss_mxfp4": {
        **GPT_OSS,
        "save": fixtures_mxfp4.save,
        "load": fixtures_mxfp4.load,
        "config": {
            **GPT_OSS["config"],
            "quantization_config": {
                "modules_to_not_convert": [
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
                "quant_method": "mxfp4",
            },
        },
    },
}
