#!/usr/bin/env python3
"""Makes tests/fixtures: tiny random models as real checkpoints, with the tokens that Hugging Face
transformers generates from them (greedy, computed in float32), and the same for SmolLM2.

    scripts/fixtures_env.sh DIR                    # the environment, once
    DIR/bin/python scripts/fixtures.py [NAME ...]  # by name; all of them

The files are committed; nothing in the build or the tests runs this. They were last made with
transformers 5.24 and torch 2.15 on a machine without a GPU: torch was installed alone, with
stand-ins for the CUDA libraries that it links (fixtures_env.sh makes them), and computed on the CPU.
Everything is seeded: the same versions write the same bytes, on another CPU but for the last digits
of logits and margins.

Each tiny model has traits that a loader can get wrong, named at its entry in MODELS of
fixtures_plain.py, fixtures_dense.py, fixtures_post_norms.py, fixtures_positions.py, fixtures_moe.py,
fixtures_routers.py, fixtures_latent.py, fixtures_indexed.py, fixtures_delta.py, fixtures_convolutions.py,
fixtures_mamba.py, fixtures_kimi_linear.py, fixtures_step.py, fixtures_deepseek_v4.py,
fixtures_released.py and fixtures_gemma4.py. Its folder has the checkpoint, often the same weights as model.gguf
(fixtures_gguf.py) and in the form that converters wrote before 2025 as old.gguf, and golden.json:

    prompts      token ids, of ragged lengths
    tokens       the 32 tokens that follow each, EOS ignored
    min_margin   smallest difference of the best two logits over those 32 steps
    logits       logits of the first step of the first prompt
    eos_case     a prompt that meets an EOS of the model early: tokens (the EOS not among them),
                 eos (the token that ended it)
"""

import copy
import shutil
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import fixtures_convolutions
import fixtures_deepseek_v4
import fixtures_delta
import fixtures_dense
import fixtures_gemma4
import fixtures_gguf
import fixtures_indexed
import fixtures_kimi_linear
import fixtures_latent
import fixtures_mamba
import fixtures_moe
import fixtures_plain
import fixtures_positions
import fixtures_post_norms
import fixtures_released
import fixtures_routers
import fixtures_smollm2
import fixtures_step
from fixtures_common import FIXTURES, write_json
from fixtures_golden import (
    STEPS,
    Reference,
    check_traits,
    check_uncached,
    eos_case,
    goldens,
    pick_eos,
    randomise,
)

MODELS = {
    **fixtures_plain.MODELS,
    **fixtures_dense.MODELS,
    **fixtures_positions.MODELS,
    **fixtures_post_norms.MODELS,
    **fixtures_moe.MODELS,
    **fixtures_routers.MODELS,
    **fixtures_latent.MODELS,
    **fixtures_indexed.MODELS,
    **fixtures_deepseek_v4.MODELS,
    **fixtures_released.MODELS,
    **fixtures_delta.MODELS,
    **fixtures_convolutions.MODELS,
    **fixtures_mamba.MODELS,
    **fixtures_kimi_linear.MODELS,
    **fixtures_step.MODELS,
    **fixtures_gemma4.MODELS,
}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def f32_tensors(model, spec):
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in named if name.endswith(tuple(spec.get("f32", ())))]


def save(model, folder, spec):
    """Saves the model in `dtype`, but tensors whose names end as one of `f32` as they are."""
    kept = {name: tensor.data.clone() for name, tensor in f32_tensors(model, spec)}
    model.to(spec["dtype"])
    for name, tensor in f32_tensors(model, spec):
        tensor.data = kept[name]
    model.save_pretrained(folder, max_shard_size=spec.get("shard_size", "1GB"))


def load(folder, config, options):
    config = AutoConfig.for_model(**config)
    return AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, **options
    )


def make(name, spec):
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = copy.deepcopy(spec["config"])
    # Of a model of text and images, the text model's fields.
    text = config.get("text_config", config)
    generator = torch.Generator().manual_seed(spec["seed"])

    plain = {key: value for key, value in text.items() if key != "quantization_config"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**plain))
    for _, tensor in f32_tensors(model, spec):
        tensor.data = tensor.data.float()
    randomise(model, generator, spec)
    spec.get("prepare", lambda _: None)(model)
    spec.get("save", save)(model, folder, spec)
    spec.get("after_save", lambda _: None)(folder)
    # transformers writes every default; a published config.json has what its author wrote.
    write_json(folder / "config.json", config)

    def loaded(changes):
        changed = copy.deepcopy(config)
        changed.get("text_config", changed).update(changes)
        return spec.get("load", load)(folder, changed, EAGER)

    reference = Reference(loaded({}), spec.get("declared", False))
    golden = goldens(reference, spec, text["vocab_size"], generator)
    check_uncached(reference, golden)
    eos = [text.get("eos_token_id")]
    if spec.get("pick_eos"):
        named, eos = pick_eos(golden, text["vocab_size"])
        for fields in (text, config):
            if "eos_token_id" in fields:
                fields["eos_token_id"] = named
        write_json(folder / "config.json", config)
    golden["eos_case"] = eos_case(reference, eos, golden, text["vocab_size"], generator)
    generation = {"bos_token_id": text.get("bos_token_id"), "eos_token_id": eos}
    if len(eos) == 1:
        generation["eos_token_id"] = eos[0]
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "golden.json", golden)
    check_traits(name, spec, golden, loaded)
    if "tokenizer" in spec:
        spec["tokenizer"](folder)
    check_stored(folder, spec, text)
    if spec.get("gguf"):
        fixtures_gguf.write(folder)
    if spec.get("old_gguf"):
        fixtures_gguf.write(folder, is_old=True)
    for file in folder.iterdir():
        file.chmod(0o644)
    tell(name, folder, golden)


def check_stored(folder, spec, config):
    stored = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    dtypes = {spec["dtype"], torch.float32} if "f32" in spec else {spec["dtype"]}
    packed = {torch.uint8, torch.int8, torch.int32, torch.int64}
    packed |= {torch.float8_e4m3fn, torch.float8_e8m0fnu}
    assert {v.dtype for v in stored.values()} - packed == dtypes
    default = config.get("tie_embedding", config["model_type"] in ("opt", "gemma3_text", "gemma4_text"))
    tied = config.get("tie_word_embeddings", default)
    head = any(name.endswith("lm_head.weight") or name == "head.weight" for name in stored)
    assert tied != head, "the head is stored exactly when it is not tied"


def tell(name, folder, golden):
    size = sum(file.stat().st_size for file in folder.iterdir())
    distinct = sum(len(set(t)) for t in golden["tokens"]) / len(golden["tokens"])
    print(
        f"{name}: {size // 1024} KiB, margins from {min(golden['min_margin'])},"
        f" {distinct:.1f} different tokens of {STEPS},"
        f" EOS after {len(golden['eos_case']['tokens'])}"
    )


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    names = sys.argv[1:] or [*MODELS, "smollm2"]
    for name in names:
        if name == "smollm2":
            fixtures_smollm2.make()
        elif name in MODELS:
            make(name, MODELS[name])
        else:
            raise SystemExit(f"unknown fixture {name}; known: {', '.join(MODELS)}, smollm2")


if __name__ == "__main__":
    main()
