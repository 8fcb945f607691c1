#!/usr/bin/env python3
"""Makes text/tests/fixtures/pre_tokenizers.json: texts of awkward parts, and where each way of cutting
text before merges cuts them.

    DIR/bin/python scripts/fixtures_pre_tokenizers.py    # the environment of fixtures_env.sh

The file is committed; nothing in the build or the tests runs this. Seeded: the same bytes each time.
The expressions are those that transformers ships for GGUF's names, run by Python's `regex`; GPT-2's is
its paper's. `lengths` has, for each name and text, the pieces' lengths in bytes of UTF-8; `same` has
the other names of transformers and which of those they have the expression of.
Last made with transformers 5.24 and regex 2026.11.19.
"""

import json
import random
from pathlib import Path

import regex
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

FILE = Path(__file__).resolve().parent.parent / "text" / "tests" / "fixtures" / "pre_tokenizers.json"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Stages of each name: every piece of one is cut by the next.
STAGES = {
    "gpt-2": [GPT2],
    "olmo": [GPT2],
    **{name: [r"\p{N}", GPT2] for name in ["smollm", "refact", "starcoder"]},
    **{
        name: [GGUF_PRE_TOKENIZER_SPLITS[name]]
        for name in ["llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "qwen2", "qwen35", "tekken", "gpt-4o"]
    },
}

# Letters, marks, digits, other numbers, punctuation, symbols, spaces and line ends of many kinds.
PARTS = """
a b hello World HELLO camelCase XMLHttp iPhone don 's 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'LL 'D 'Re
naïve Straße Ångström œuvre ÇA élan ǅ ǆ ʰ ª º Здравствуй МИР ελληνικά ΑΒΓ 日本語 中文字 テキスト 한국어 ไทย
हिन्दी বাংলা தமிழ் مرحبا שלום é x̂ ñ ̈ ः 1 22 333 4444 55555 1984 3.14 1,000 ² ½ Ⅷ ٣٤ ๕ 零
. , ! ? ... :: ; - -- _ / // \\ ( ) [ ] { } < > = == + * & | ^ % $ # @ ~ ` " ' ’ “ ” « » … — € ¥ © ™
/path/to/file http://a.b/c?d=e f(x[0],&y); if(a!=b){return;} 🙂 🚀 👩‍👩‍👧 🇫🇷 ❤️ ✅
""".split()
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "  \n\t ", "\u00a0", "\u3000", "\u2003", "\u200b", ""]


def texts():
    """Seeded texts; some parts meet without a space between."""
    chooser = random.Random(77)
    made = ["", " ", "\n", "a", " a", "a ", "\n\n a", "it's", "IT'S", "'", "''s", "1", "  1", "1 2  3"]
    for _ in range(100):
        count = chooser.randrange(2, 16)
        made.append("".join(chooser.choice(PARTS) + chooser.choice(SPACES) for _ in range(count)))
    return made


def cut(expression, text):
    """Matches and what lies between them."""
    pieces, at = [], 0
    for match in regex.finditer(expression, text):
        pieces += [text[at : match.start()], match.group()]
        at = match.end()
    return [piece for piece in [*pieces, text[at:]] if piece]


def lengths(stages, text):
    pieces = [text] if text else []
    for expression in stages:
        pieces = [part for piece in pieces for part in cut(expression, piece)]
    assert "".join(pieces) == text
    return [len(piece.encode()) for piece in pieces]


def main():
    all_texts = texts()
    rows = {name: [lengths(stages, text) for text in all_texts] for name, stages in STAGES.items()}
    lines = [f'  "{name}": {json.dumps(row, separators=(",", ":"))}' for name, row in rows.items()]
    listed = ",\n".join("  " + json.dumps(text, ensure_ascii=False) for text in all_texts)
    same = {
        name: first
        for name, expression in GGUF_PRE_TOKENIZER_SPLITS.items()
        for first in [next((first for first, stages in STAGES.items() if stages == [expression]), None)]
        if name not in STAGES and first
    }
    texts_and_lengths = f'{{"texts": [\n{listed}\n],\n"lengths": {{\n' + ",\n".join(lines) + "\n}"
    FILE.write_text(f'{texts_and_lengths},\n"same": {json.dumps(same)}}}\n')
    print(f"{FILE}: {FILE.stat().st_size} bytes, {sum(map(len, rows['gpt-2']))} pieces by gpt-2")


if __name__ == "__main__":
    main()
