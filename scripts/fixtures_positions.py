"""Decoders whose rotary frequencies are scaled for contexts longer than the original one. Prompts
are of lengths around it.

Where the factors depend on a sequence's length (LongRoPE, dynamic NTK), goldens are computed as
Tandem computes: a sequence has, from its first row to its last, the factors for all positions that it
may come to have, prompt + 32. transformers' generate() changes them when a sequence passes the
original length."""

import torch

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "vocab_size": 300,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

SHARED = {
    "dtype": torch.bfloat16,
    "exact_f16": True,
    "pick_eos": True,
    "gguf": True,
    "without": {"rope_scaling": {"rope_scaling": None}},
    "lengths": [1, 2, 5, 9, 16, 17, 31, 40, 57, 72],
}

MINISTRAL_ROPE = {
    "beta_fast": 1.0,
    "beta_slow": 0.1,
    "factor": 8.0,
    "llama_4_scaling_beta": 0.3,
    "max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 100.0,
    "rope_type": "yarn",
    "type": "yarn",
}

MODELS = {
    # LLaMA-3.1: frequencies are kept, ramped and divided; most prompts are longer than the original
    # context of 32, or become so.
    "llama31": {
        **SHARED,
        "seed": 20,
        "config": {
            **LLAMA,
            "max_position_embeddings": 256,
            "rope_theta": 5000.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
        },
    },
    # All frequencies divided; `type` instead of `rope_type`, as old files have it.
    "llama_linear": {
        **SHARED,
        "seed": 21,
        "config": {
            **LLAMA,
            "max_position_embeddings": 256,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "linear", "factor": 4.0},
        },
    },
    # Dynamic NTK: max_position_embeddings is the original context (48); beyond it the base grows
    # with the length that the sequence may come to have. No GGUF can say so.
    "llama_dynamic": {
        **SHARED,
        "seed": 22,
        "gguf": False,
        "declared": True,
        "config": {
            **LLAMA,
            "max_position_embeddings": 48,
            "rope_theta": 100.0,
            "rope_scaling": {"type": "dynamic", "factor": 4.0},
        },
    },
    # YaRN as Qwen2.5 documents it: max_position_embeddings stays the original context (40), four
    # times which is the whole one. An attention factor comes with it.
    "qwen2_yarn": {
        **SHARED,
        "seed": 23,
        "without": {
            "rope_scaling": {"rope_scaling": None},
            "the attention factor": {
                "rope_scaling": {
                    "factor": 4.0,
                    "original_max_position_embeddings": 40,
                    "type": "yarn",
                    "attention_factor": 1.0,
                }
            },
        },
        "config": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 40,
            "max_window_layers": 3,
            "sliding_window": 16,
            "use_sliding_window": False,
            "vocab_size": 260,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 500.0,
            "rope_scaling": {
                "factor": 4.0,
                "original_max_position_embeddings": 40,
                "type": "yarn",
            },
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    },
    # Phi-4-mini: fused matrices, three quarters of each head are turned, tied; long factors where
    # prompt + 32 is more than 48, else short ones, and an attention factor with both.
    "phi3_longrope": {
        **SHARED,
        "seed": 24,
        "declared": True,
        "without": {
            "partial_rotary_factor": {
                "partial_rotary_factor": 0.5,
                "rope_scaling": {
                    "type": "longrope",
                    "long_factor": [1.0, 1.5, 2.3, 3.1],
                    "short_factor": [1.0, 1.0, 1.2, 1.3],
                },
            },
            "long factors": {
                "rope_scaling": {
                    "type": "longrope",
                    "long_factor": [1.0, 1.0, 1.2, 1.3, 1.35, 1.4],
                    "short_factor": [1.0, 1.0, 1.2, 1.3, 1.35, 1.4],
                },
            },
            "the attention factor": {
                "rope_scaling": {
                    "type": "longrope",
                    "long_factor": [1.0, 1.5, 2.3, 3.1, 3.7, 4.4],
                    "short_factor": [1.0, 1.0, 1.2, 1.3, 1.35, 1.4],
                    "attention_factor": 1.0,
                },
            },
        },
        "config": {
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "attention_bias": False,
            "hidden_size": 64,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 192,
            "original_max_position_embeddings": 48,
            "partial_rotary_factor": 0.75,
            "vocab_size": 260,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 100.0,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": [1.0, 1.5, 2.3, 3.1, 3.7, 4.4],
                "short_factor": [1.0, 1.0, 1.2, 1.3, 1.35, 1.4],
            },
            "sliding_window": 192,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 1,
            "torch_dtype": "bfloat16",
        },
    },
    # Ministral 3: queries that grow with their position from position 16 on.
    "ministral3": {
        **SHARED,
        "seed": 26,
        "without": {
            "factor of queries": {"rope_parameters": {**MINISTRAL_ROPE, "llama_4_scaling_beta": 0.0}},
            "yarn": {"rope_parameters": {**MINISTRAL_ROPE, "rope_type": "default", "type": "default"}},
        },
        "config": {
            "architectures": ["Ministral3ForCausalLM"],
            "model_type": "ministral3",
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 48,
            "intermediate_size": 80,
            "max_position_embeddings": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_parameters": MINISTRAL_ROPE,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "vocab_size": 300,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    },
}
