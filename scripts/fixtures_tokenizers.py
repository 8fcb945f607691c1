"""Tiny tokenizers in the two forms that models are published with, and what transformers makes of
a list of awkward strings with them (tokenizer_cases.json: text, ids, and decoded, the text that the ids
give without special tokens)."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from fixtures_common import write_json

# Enough text for a hundred merges; what it says does not matter.
CORPUS = """
The river carried the letters past the mill, and nobody on the bridge asked where they were going.
There is a word for the time between the last light and the first lamp, but the people here do not use it.
When the snow is deep, the road to the north is closed, and the bread comes over the lake by sledge.
She counted the steps: one, two, three, ten, a hundred; then she lost the number and went on walking.
It's what we don't know that they'll tell us, he said; I've heard it before, and you're not the first.
In the year 1984 there were 365 days, 12 months and 1 winter that would not end.
Water, salt, flour, yeast. Mix them well, let the dough rest, and bake it until the crust sings.
""".strip().split("\n")

CASES = [
    "Hello, world!",
    "hello",
    " leading space",
    "   three leading spaces",
    "trailing space ",
    "two  spaces   three",
    "a\nb\n\nc\r\nd\te",
    "\n\n1. first\n2. second",
    "Numbers: 7, 42, 1984, 3.14159, 1,000,000",
    "year 2024  5 times",
    "don't I'll you've it's WE'RE",
    "snake_case camelCase kebab-case x=y+z; f(a[i], &b)",
    "naïve café Ångström œuvre",
    "Straße über größer",
    "Здравствуй, мир",
    "日本語のテキスト、と中文。",
    "مرحبا بالعالم",
    "emoji 🙂🚀 family 👩‍👩‍👧 flag 🇫🇷",
    "Ⅷ ½ ² ٣ 零",
    "non\u00a0breaking\u2003em\u200bzero width",
    "e\u0301 is not \u00e9",
    "",
]


def train(special_tokens, vocab_size, pre_tokenizer):
    """A byte-level BPE tokenizer; the special tokens have the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def cases(tokenizer, more=()):
    """Rows of tokenizer_cases.json."""
    rows = []
    for text in [*CASES, *more]:
        ids = tokenizer(text).input_ids
        decoded = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        rows.append({"text": text, "ids": ids, "decoded": decoded})
    return rows


def opt(folder):
    """vocab.json and merges.txt, with everything else in tokenizer_config.json."""
    tokenizer = train(["<s>", "<pad>", "</s>", "<unk>"], 376, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.model.save(str(folder))

    def special(content):
        return {
            "__type": "AddedToken",
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": True,
        }

    config = {
        "errors": "replace",
        "unk_token": special("</s>"),
        "bos_token": special("</s>"),
        "eos_token": special("</s>"),
        "pad_token": special("<pad>"),
        "add_prefix_space": False,
        "add_bos_token": True,
        "tokenizer_class": "GPT2Tokenizer",
    }
    write_json(folder / "tokenizer_config.json", config)
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded("a").input_ids[0] == 2, "BOS is added"
    write_json(folder / "tokenizer_cases.json", cases(loaded, ["over</s>and out"]))


LLAMA_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('Unknown role: ' + message['role']) }}"
    "{%- endif %}"
    "{%- if loop.first and message['role'] != 'system' %}"
    "{{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}"
    "{%- endif %}"
    "{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'].strip() ~ '<|im_end|>' }}"
    "{{- '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# LLaMA-3's split of text into words: numbers in groups of three, punctuation with its newlines.
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama(folder):
    """tokenizer.json, with the BOS in its post-processor and a chat template beside it."""
    words = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    special = [AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]]
    tokenizer = train(special, 320, words)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 128,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": LLAMA_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", config)
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded("a").input_ids[0] == 1, "BOS is added"
    write_json(folder / "tokenizer_cases.json", cases(loaded, ["<|im_start|>user\nhi<|im_end|>", "over</s>and out"]))
    conversations = [
        [{"role": "user", "content": "  Who carried the letters?\n"}],
        [
            {"role": "system", "content": "Count the steps."},
            {"role": "user", "content": "one, two"},
            {"role": "assistant", "content": "three"},
            {"role": "user", "content": "ten"},
        ],
    ]
    write_json(folder / "chat_cases.json", chat_cases(loaded, conversations))


def chat_cases(tokenizer, conversations):
    """Each conversation as the chat template renders it, the assistant to speak next, and its ids."""
    rows = []
    for messages in conversations:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # The template writes the BOS itself where there is one.
        ids = tokenizer(rendered, add_special_tokens=False).input_ids
        rows.append({"messages": messages, "rendered": rendered, "ids": ids})
    return json.loads(json.dumps(rows))
