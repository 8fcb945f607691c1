"""Checkpoints of models of text and images, of which only the text model is computed."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

PREFIX = "language_model."


def save(model, folder, spec):
    """Stores the text model's tensors behind PREFIX, beside some of a vision tower."""
    generator = torch.Generator().manual_seed(spec["seed"])
    vision = {
        "vision_tower.patch_conv.weight": torch.randn(16, 3, 14, 14, generator=generator),
        "vision_tower.ln_pre.weight": torch.randn(16, generator=generator),
        "multi_modal_projector.linear_1.weight": torch.randn(48, 16, generator=generator),
        "multi_modal_projector.norm.weight": torch.randn(16, generator=generator),
    }
    text = {PREFIX + name: value for name, value in model.state_dict().items()}
    stored = {name: value.to(spec["dtype"]).contiguous() for name, value in {**vision, **text}.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, config, options):
    """The text model in f32, from what `save` stored."""
    text = AutoConfig.for_model(**config["text_config"])
    model = AutoModelForCausalLM.from_config(text, dtype=torch.float32, **options)
    stored = load_file(folder / "model.safetensors")
    weights = {k.removeprefix(PREFIX): v.float() for k, v in stored.items() if k.startswith(PREFIX)}
    model.load_state_dict(weights)
    return model
