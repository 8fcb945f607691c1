#!/usr/bin/env python3
"""Makes tests/fixtures/*_mtp and glm4_moe_mtp_dense: tiny models with a layer for multi-token
prediction, which transformers does not compute, and the tokens that it predicts.

    DIR/bin/python scripts/fixtures_prediction.py  # DIR of scripts/fixtures_env.sh

The models are those of tests/fixtures/glm4_moe and deepseek_v3 with another layer, and one without
experts. Decoder layers are those of transformers, and what joins them is computed here.
prediction.json has

    prompts      token ids
    tokens       the tokens that follow each greedily
    residual     the model's residual stream of all tokens but the last, before the final norm
    drafts       for each token, the tokens that are predicted to follow it, given all before it
    suffix       the drafts of the last prompt without its first rows, as many as `skipped`
    without      the same by layers with a mistake, each of which changes some
"""

import copy
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from fixtures import EAGER, load, save
from fixtures_common import FIXTURES, MARGIN, greedy, write_json
from fixtures_golden import ROUTER_MARGIN, Reference, randomise
from fixtures_latent import MODELS as LATENT
from fixtures_routers import MODELS

PROMPT_LENGTHS = [1, 5, 17]
STEPS = 6
DRAFTS = 3
SKIPPED = 6
SPEC = {"dtype": torch.bfloat16, "f32": ("e_score_correction_bias", "mlp.gate.weight")}
MISTAKES = ["order", "final norm", "gains", "last norm", "next token", "history", "chained state"]


class Layer:
    """The layer for multi-token prediction of `model`: its decoder layer and last norm are those of
    `block`, a model of one layer."""

    def __init__(self, model, block, tensors, layer):
        self.model, self.block = model, Reference(block)
        named = {name: tensors[f"model.layers.{layer}.{name}.weight"].float() for name in
                 ("enorm", "hnorm", "eh_proj")}
        self.enorm, self.hnorm, self.eh_proj = named["enorm"], named["hnorm"], named["eh_proj"]

    def norm(self, rows, gain):
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps)
        return rows * gain

    def rows(self, tokens, states, mistake):
        """What the decoder layer makes of the embeddings of `tokens` and as many hidden states."""
        gains = mistake != "gains"
        e = self.norm(self.model.model.embed_tokens(torch.tensor(tokens)), self.enorm if gains else 1)
        h = self.norm(states, self.hnorm if gains else 1)
        joined = torch.cat([h, e] if mistake == "order" else [e, h], -1)
        z = (joined @ self.eh_proj.T)[None]
        inner = self.block.model.model
        positions = torch.arange(1, len(tokens) + 1)[None]
        mask = torch.full((len(tokens), len(tokens)), float("-inf"))
        mask = mask.fill_diagonal_(0) if mistake == "history" else mask.triu(1)
        return inner.layers[0](
            z,
            attention_mask=mask[None, None],
            position_ids=positions,
            position_embeddings=inner.rotary_emb(z, positions),
        )[0]

    def drafts(self, tokens, residual, mistake=None):
        """The tokens predicted after `tokens`, and by how much their logits are ahead."""
        states = residual if mistake == "final norm" else self.model.model.norm(residual)
        states, margin, drafts = states[: len(tokens) - 1], float("inf"), []
        for _ in range(DRAFTS):
            shifted = (tokens + drafts)[:-1] if mistake == "next token" else (tokens + drafts)[1:]
            out = self.rows(shifted, states, mistake)
            last = out[-1] if mistake == "last norm" else self.block.model.model.norm(out[-1])
            best = self.model.lm_head(last).topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            drafts.append(best.indices[0].item())
            following = states[-1] if mistake == "chained state" else out[-1]
            states = torch.cat([states, following[None]])
        return drafts, margin


def residual_of(model, tokens):
    """The residual stream after the last layer."""
    seen = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    model(torch.tensor([tokens]), use_cache=False)
    hook.remove()
    return seen[0]


def golden(model, layer, generator):
    reference = Reference(model)
    found = {"prompts": [], "tokens": [], "residual": [], "drafts": []}
    without = {mistake: [] for mistake in MISTAKES}
    for length in PROMPT_LENGTHS:
        for _ in range(300):
            prompt = torch.randint(4, model.config.vocab_size, (length,), generator=generator).tolist()
            reference.router_margin = layer.block.router_margin = float("inf")
            tokens, margin, _ = greedy(model, prompt, STEPS)
            residual = residual_of(model, (prompt + tokens)[:-1])
            every = [prompt + tokens[: count + 1] for count in range(STEPS)]
            drafts = [layer.drafts(known, residual) for known in every]
            late = every if length > SKIPPED else []
            late = [layer.drafts(known[SKIPPED:], residual[SKIPPED:]) for known in late]
            router = min(reference.router_margin, layer.block.router_margin)
            margin = min([margin, *(margin for _, margin in drafts + late)])
            if margin > 3 * MARGIN and router > ROUTER_MARGIN and len(set(tokens)) == STEPS:
                break
        else:
            raise SystemExit(f"no usable prompt of length {length}")
        found["prompts"].append(prompt)
        found["tokens"].append(tokens)
        found["residual"].append([[float(f"{x:.8g}") for x in row] for row in residual.tolist()])
        found["drafts"].append([drafts for drafts, _ in drafts])
        for mistake in MISTAKES:
            without[mistake].append([layer.drafts(known, residual, mistake)[0] for known in every])
    for mistake, drafts in without.items():
        assert drafts != found["drafts"], f"{mistake} changes no draft"
    assert [tokens for tokens, _ in late] != found["drafts"][-1], "a shorter context changes no draft"
    suffix = {"skipped": SKIPPED, "drafts": [tokens for tokens, _ in late]}
    return found | {"suffix": suffix, "without": without}


def random_model(config, generator):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    randomise(model.float(), generator, {})
    return model


def make(name, seed, config, from_fixture=None):
    generator = torch.Generator().manual_seed(seed)
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    count = config["num_hidden_layers"]
    if from_fixture:
        tensors = load_file(FIXTURES / from_fixture / "model.safetensors")
        tensors = {name: tensor for name, tensor in tensors.items() if f"layers.{count}." not in name}
    else:
        save(random_model(config, generator), folder, SPEC)
        tensors = load_file(folder / "model.safetensors")
    is_dense = count < config["first_k_dense_replace"]
    alone = {**config, "num_hidden_layers": 1, "first_k_dense_replace": int(is_dense)}
    with tempfile.TemporaryDirectory() as saved:
        save(random_model(alone, generator), saved, SPEC)
        block = load(saved, copy.deepcopy(alone), EAGER)
        for key, tensor in load_file(Path(saved) / "model.safetensors").items():
            key = key.replace("model.norm.", f"model.layers.{count}.shared_head.norm.")
            if "layers." in key:
                tensors[key.replace("layers.0.", f"layers.{count}.")] = tensor
    hidden = config["hidden_size"]
    for part in ("enorm", "hnorm"):
        gain = 1 + 0.5 * torch.randn(hidden, generator=generator)
        tensors[f"model.layers.{count}.{part}.weight"] = gain.bfloat16()
    eh_proj = torch.randn(hidden, 2 * hidden, generator=generator) / (2 * hidden) ** 0.5
    tensors[f"model.layers.{count}.eh_proj.weight"] = eh_proj.bfloat16()
    # Files repeat the embedding and the head.
    tensors[f"model.layers.{count}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"model.layers.{count}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    tensors = dict(sorted(tensors.items()))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    with torch.no_grad():
        model = load(folder, copy.deepcopy(config), EAGER)
        write_json(
            folder / "prediction.json", golden(model, Layer(model, block, tensors, count), generator)
        )


def main():
    logging.set_verbosity_error()
    config = MODELS["glm4_moe"]["config"]
    make("glm4_moe_mtp", 70, config, from_fixture="glm4_moe")
    dense = {**config, "num_hidden_layers": 2, "first_k_dense_replace": 3, "use_qk_norm": False}
    make("glm4_moe_mtp_dense", 71, {**dense, "attention_bias": False})
    latent = {**LATENT["deepseek_v3"]["config"], "num_nextn_predict_layers": 1}
    make("deepseek_v3_mtp", 72, latent, from_fixture="deepseek_v3")


if __name__ == "__main__":
    main()
