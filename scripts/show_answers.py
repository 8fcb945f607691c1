#!/usr/bin/env python3
"""Prints the first prompts of a file with their answers, and says where one was cut at its max_tokens.

    scripts/show_answers.py PROMPTS.jsonl ANSWERS.jsonl COUNT

Answers stand in the order of their prompts.
"""

import json
import sys
import textwrap


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        answers = [json.loads(line) for line in file]
    with open(sys.argv[1], encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file if line.strip()]
    for prompt, answer in list(zip(prompts, answers))[: int(sys.argv[3])]:
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
