"""Dense decoders whose layers have no norm before each half but one behind it, and one that differs
from LLaMA by its biases alone."""

from fixtures_dense import SHARED, unit_gains


def no_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("_proj.bias"):
            parameter.data.zero_()


SIZES = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 260,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
NORMS = {
    "norms of q and k": unit_gains("q_norm", "k_norm"),
    "norms behind": unit_gains("post_attention_layernorm", "post_feedforward_layernorm"),
}

MODELS = {
    # Norms behind each half alone, and of all heads of q and k at once.
    "olmo2": {
        **SHARED,
        "seed": 70,
        "without": NORMS,
        "config": {
            **SIZES,
            "architectures": ["Olmo2ForCausalLM"],
            "model_type": "olmo2",
            "attention_bias": False,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "rope_scaling": None,
            "rope_theta": 500000,
        },
    },
    # The same with a window in three of four layers, and YaRN in the others.
    "olmo3": {
        **SHARED,
        "seed": 71,
        "without": {
            **NORMS,
            "sliding_window": {"sliding_window": 4096},
            "rope_scaling": {"rope_scaling": None},
        },
        "config": {
            **SIZES,
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "attention_bias": False,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "rope_scaling": {
                "attention_factor": 1.2,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "rope_type": "yarn",
            },
            "rope_theta": 500000,
            "sliding_window": 12,
        },
    },
    # Biases of q, k and v but not of the output; heads wider than the hidden state.
    "seed_oss": {
        **SHARED,
        "seed": 72,
        "without": {"biases": no_biases},
        "config": {
            **SIZES,
            "architectures": ["SeedOssForCausalLM"],
            "model_type": "seed_oss",
            "attention_bias": True,
            "attention_out_bias": False,
            "head_dim": 16,
            "mlp_bias": False,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rope_scaling": {"rope_type": "default"},
            "rope_theta": 10000000.0,
        },
    },
}
