"""Models of which three of four layers keep a state (gated DeltaNet) and one attends: Qwen3.5 and
Qwen3-Next. transformers computes prompts in chunks of 64 and then row by row; prompts of 40 and 80
tokens go on beyond a chunk, one in its answer and one from the start."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

# Names of the text's tensors in checkpoints of models that also see images.
INNER, OUTER = "model.", "model.language_model."


def slow_states(model):
    """Gains of the heads' norm are around 1, those of others around 0; a state keeps most of itself
    from row to row."""
    for name, parameter in model.named_parameters():
        if name.endswith("linear_attn.norm.weight"):
            parameter.data.add_(1)
        if name.endswith("A_log"):
            parameter.data.sub_(2)


def save_beside_images(model, folder, spec):
    stored = {
        OUTER + name.removeprefix(INNER) if name.startswith(INNER) else name: value
        for name, value in model.state_dict().items()
    }
    generator = torch.Generator().manual_seed(spec["seed"])
    stored["model.visual.patch_embed.proj.weight"] = torch.randn((8, 3), generator=generator)
    stored = {name: value.to(spec["dtype"]).contiguous() for name, value in stored.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def load_beside_images(folder, config, options):
    text = AutoConfig.for_model(**config["text_config"])
    model = AutoModelForCausalLM.from_config(text, dtype=torch.float32, **options)
    stored = load_file(folder / "model.safetensors")
    named = {name.replace(OUTER, INNER, 1): value.float() for name, value in stored.items()}
    model.load_state_dict({k: v for k, v in named.items() if not k.startswith("model.visual")})
    return model


def of_modules(kind, change):
    """What undoes a trait: a change of each module whose class ends so."""

    def undo(model):
        for module in model.modules():
            if type(module).__name__.endswith(kind):
                change(module)

    return undo


def fill(name, value):
    def change(module):
        module.get_parameter(name).data.fill_(value)

    return change


SHARED = {
    "gguf": True,
    "dtype": torch.bfloat16,
    "exact_f16": True,
    "pick_eos": True,
    "gain_mean": 0,
    "prepare": slow_states,
    "lengths": [1, 2, 3, 5, 8, 13, 17, 31, 40, 80],
    "without": {
        "norms of q and k": of_modules("Attention", fill("q_norm.weight", 0.0)),
        "gains of the heads' norm": of_modules("DeltaNet", fill("norm.weight", 1.0)),
        "rates of forgetting": of_modules("DeltaNet", fill("A_log", 0.0)),
        "biases of the rates": of_modules("DeltaNet", fill("dt_bias", 0.0)),
        "partial rotation": {"partial_rotary_factor": 1.0, "rope_parameters": None},
    },
}

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 24,
    "max_position_embeddings": 256,
    "vocab_size": 260,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 2,
}

# What Qwen3.5 has beyond its text: layers that guess further tokens, places of images.
OF_QWEN35 = {
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
}

MODELS = {
    # Separate projections, a dense network; tied.
    "qwen35": {
        **SHARED,
        "seed": 40,
        "config": {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "intermediate_size": 48,
            **SIZES,
            **OF_QWEN35,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
    },
    # Beside images: eight experts of which each row has three, and one that is everybody's.
    "qwen35_moe": {
        **SHARED,
        "seed": 41,
        "save": save_beside_images,
        "load": load_beside_images,
        "config": {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 24,
                "num_experts": 8,
                "num_experts_per_tok": 3,
                "router_aux_loss_coef": 0.001,
                **SIZES,
                **OF_QWEN35,
                "tie_word_embeddings": False,
            },
            "vision_config": {"model_type": "qwen3_5_moe_vision", "depth": 1},
            "image_token_id": 250,
            "video_token_id": 251,
            "vision_start_token_id": 252,
            "vision_end_token_id": 253,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
    },
    # One projection for q, k, v and z and one for b and a, head by head; which layers attend goes by
    # the interval.
    "qwen3_next": {
        **SHARED,
        "seed": 42,
        "config": {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "decoder_sparse_step": 1,
            "full_attention_interval": 4,
            "intermediate_size": 96,
            "mlp_only_layers": [],
            "moe_intermediate_size": 16,
            "norm_topk_prob": True,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "output_router_logits": False,
            "partial_rotary_factor": 0.25,
            "rope_scaling": None,
            "rope_theta": 10000000,
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": 24,
            **SIZES,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
    },
}
