"""What the fixture makers share: greedy decoding by transformers and compact JSON."""

import json
from pathlib import Path

import torch
from transformers import GenerationConfig

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"

# A runtime that sums in another order than torch may pick another token where the best two logits
# are closer than this, so such prompts are no test of it.
MARGIN = 1e-3


def greedy(model, prompt, steps, eos_token_ids=None, **more):
    """Continues `prompt` (token ids) greedily by up to `steps` tokens, with `more` of a GenerationConfig.

    Returns the new tokens (a final EOS included), the smallest difference between the best and the
    second score (a logit, as `more` changes it) over all steps, and the logits of the first step
    `[vocab_size]`.
    """
    # What a GenerationConfig leaves open, generate() takes from the model's own.
    model.generation_config = GenerationConfig()
    config = GenerationConfig(
        max_new_tokens=steps, do_sample=False, eos_token_id=eos_token_ids, pad_token_id=0, **more
    )
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            output_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
        )
    tokens = out.sequences[0, len(prompt) :].tolist()
    best = torch.stack([step[0].topk(2).values for step in out.scores])
    margin = (best[:, 0] - best[:, 1]).min().item()
    return tokens, margin, out.logits[0][0]


def greedy_uncached(model, prompt, steps, eos_token_ids=None):
    """As `greedy`, every step computed from the whole sequence without a cache."""
    ids, margins, first = list(prompt), [], None
    with torch.inference_mode():
        for _ in range(steps):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            first = logits if first is None else first
            best = logits.topk(2).values
            margins.append((best[0] - best[1]).item())
            ids.append(logits.argmax().item())
            if eos_token_ids and ids[-1] in eos_token_ids:
                break
    return ids[len(prompt) :], min(margins), first


def write_json(path, value):
    """Writes one member, or one element of a list, a line: small files whose diffs can be read."""

    def line(item):
        return json.dumps(item, ensure_ascii=False)

    def block(item, indent):
        lists = isinstance(item, list) and item and isinstance(item[0], (list, dict))
        if not lists:
            return line(item)
        rows = f",\n{indent} ".join(line(row) for row in item)
        return f"[\n{indent} {rows}\n{indent}]"

    if isinstance(value, list):
        text = block(value, "")
    else:
        members = (f" {line(key)}: {block(item, ' ')}" for key, item in value.items())
        text = "{\n" + ",\n".join(members) + "\n}"
    path.write_text(text + "\n", encoding="utf-8")
