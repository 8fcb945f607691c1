#!/usr/bin/env python3
"""Tokens that transformers generates behind prompts of more than 8,192 tokens, computed in float32
by the tiny LLaMA of tests/fixtures/llama with positions for them: long.json beside golden.json.

    DIR/bin/python scripts/fixtures_long.py      # in the environment of fixtures_env.sh

    max_position_embeddings   what config.json must say instead
    lengths                   of the prompts; token i of the one of n is 4 + (i * i + n * (i // 7)) % 316
    tokens                    the 32 tokens that follow each, EOS ignored
    min_margin                smallest difference of the best two logits over those 32 steps
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fixtures_common import FIXTURES, MARGIN, greedy, write_json

POSITIONS = 16384
STEPS = 32
# Fewer different tokens than this in an answer, and it says little about attention.
DISTINCT = 10


def prompt(length):
    return [4 + (i * i + length * (i // 7)) % 316 for i in range(length)]


def main():
    folder = FIXTURES / "llama"
    config = AutoConfig.from_pretrained(folder, max_position_embeddings=POSITIONS)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    golden = {"max_position_embeddings": POSITIONS, "lengths": [], "tokens": [], "min_margin": []}
    for first in (8200, 9001):
        for length in range(first, first + 50):
            tokens, margin, _ = greedy(model, prompt(length), STEPS)
            if margin > MARGIN and len(set(tokens)) >= DISTINCT:
                break
        else:
            raise SystemExit(f"no usable prompt from {first} tokens on")
        golden["lengths"].append(length)
        golden["tokens"].append(tokens)
        golden["min_margin"].append(round(margin, 6))
    write_json(folder / "long.json", golden)


if __name__ == "__main__":
    main()
