#!/usr/bin/env python3
"""Makes tests/fixtures/llama/penalties.json: greedy answers of transformers with a repetition penalty and a least number
of new tokens.

    DIR/bin/python scripts/fixtures_penalties.py    # the environment of fixtures_env.sh

The file is committed; nothing in the build or the tests runs this. An answer is kept where the best two tokens of every
step are far apart. Last made with transformers 5.24.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from fixtures_common import MARGIN, greedy, write_json

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "llama"
STEPS = 40


def main():
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    numbers = torch.Generator().manual_seed(7)
    cases = []
    for index in range(60):
        length = 1 + index % 17
        prompt = torch.randint(3, model.config.vocab_size, (length,), generator=numbers).tolist()
        penalty, least = [1.0, 1.05, 1.3, 2.0, 0.8][index % 5], [0, 0, 6, 25][index % 4]
        more = {"repetition_penalty": penalty, "min_new_tokens": least or None}
        tokens, margin, _ = greedy(model, prompt, STEPS, model.config.eos_token_id, **more)
        if margin >= MARGIN:
            cases.append({"prompt": prompt, "repetition_penalty": penalty, "min_tokens": least, "tokens": tokens})
    write_json(FOLDER / "penalties.json", cases)
    ends = sum(len(case["tokens"]) < STEPS for case in cases)
    print(f"{len(cases)} answers, of which {ends} end by themselves")


if __name__ == "__main__":
    main()
