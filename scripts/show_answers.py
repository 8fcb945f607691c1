#!/usr/bin/env python3
"""Prints the first prompts of a file with their answers, and says where one was cut at its max_tokens.

    scripts/show_answers.py PROMPTS.jsonl ANSWERS.jsonl COUNT

A prompt without a custom_id is known in the answers by its line.
"""

import json
import sys
import textwrap


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        answers = {row["custom_id"]: row for row in map(json.loads, file)}
    with open(sys.argv[1], encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file][: int(sys.argv[3])]
    for number, prompt in enumerate(prompts, 1):
        answer = answers[prompt.get("custom_id", f"line-{number}")]
        if answer.get("error"):
            text = f"error: {answer['error']}"
        else:
            choice = answer["response"]["body"]["choices"][0]
            text = choice["text"].strip() + (" [cut]" if choice["finish_reason"] == "length" else "")
        # A terminal would obey control characters.
        text = "".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        print(f"  {prompt['prompt']}")
        print(textwrap.indent(text, "    > ", lambda line: True))


if __name__ == "__main__":
    main()
