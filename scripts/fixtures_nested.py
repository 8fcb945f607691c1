"""Checkpoints of models of text and images, of which only the text model is computed."""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

PREFIX = "language_model."
# What a model of Mistral has around its text model, and some of its other tensors.
PIXTRAL_SHAPES = {
    "vision_tower.patch_conv.weight": (16, 3, 14, 14),
    "vision_tower.ln_pre.weight": (16,),
    "multi_modal_projector.linear_1.weight": (48, 16),
    "multi_modal_projector.norm.weight": (16,),
}
PIXTRAL_CONFIG = {
    "image_token_index": 10,
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "torch_dtype": "bfloat16",
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 16,
        "head_dim": 8,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 28,
        "patch_size": 14,
        "num_channels": 3,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "attention_dropout": 0.0,
    },
    "vision_feature_layer": -1,
}


def save(model, folder, spec):
    """Stores the text model's tensors behind PREFIX, beside those of a vision tower (`vision` of the
    spec: shapes by name)."""
    generator = torch.Generator().manual_seed(spec["seed"])
    vision = {name: torch.randn(shape, generator=generator) for name, shape in spec["vision"].items()}
    # A tied head is the embedding once more.
    tied = model.config.tie_word_embeddings
    text = {
        PREFIX + name: value
        for name, value in model.state_dict().items()
        if not (tied and name.startswith("lm_head"))
    }
    stored = {name: value.to(spec["dtype"]).contiguous() for name, value in {**vision, **text}.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def around(functions):
    """How a model is stored and loaded that is stored by other functions, but as a part of a model of
    text and images."""

    def save_inside(model, folder, spec):
        functions["save"](model, folder, spec)
        file = folder / "model.safetensors"
        text = {PREFIX + name: value for name, value in load_file(file).items()}
        generator = torch.Generator().manual_seed(spec["seed"])
        vision = {
            name: torch.randn(shape, generator=generator).to(spec["dtype"])
            for name, shape in spec["vision"].items()
        }
        save_file({**vision, **text}, file, metadata={"format": "pt"})

    def load_inside(folder, config, options):
        stored = load_file(folder / "model.safetensors")
        text = {k.removeprefix(PREFIX): v for k, v in stored.items() if k.startswith(PREFIX)}
        with tempfile.TemporaryDirectory() as alone:
            save_file(text, Path(alone) / "model.safetensors", metadata={"format": "pt"})
            return functions["load"](Path(alone), config["text_config"], options)

    return {**functions, "save": save_inside, "load": load_inside}


def load(folder, config, options):
    """The text model in f32, from what `save` stored."""
    text = AutoConfig.for_model(**config["text_config"])
    model = AutoModelForCausalLM.from_config(text, dtype=torch.float32, **options)
    stored = load_file(folder / "model.safetensors")
    weights = {k.removeprefix(PREFIX): v.float() for k, v in stored.items() if k.startswith(PREFIX)}
    if text.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model
