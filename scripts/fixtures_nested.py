"""Checkpoints of models of text and images, of which only the text model is computed."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

PREFIX = "language_model."


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
