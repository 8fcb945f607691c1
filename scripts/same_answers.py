#!/usr/bin/env python3
"""Compares two output files of one input: every request's token ids, or its error. Exit 0: equal,
and every request has an answer.

    scripts/same_answers.py A.jsonl B.jsonl
"""

import json
import sys


def answers(path):
    """custom_id -> token ids of each choice, or the error."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            body = (row.get("response") or {}).get("body") or {}
            choices = [choice["token_ids"] for choice in body.get("choices") or []]
            found[row["custom_id"]] = choices or [row.get("error")]
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    first, second = answers(sys.argv[1]), answers(sys.argv[2])
    if not first:
        sys.exit(f"{sys.argv[1]} has no answers.")
    differing = [name for name in sorted(first | second) if first.get(name) != second.get(name)]
    tokens = sum(len(ids) for choices in first.values() for ids in choices if isinstance(ids, list))
    if differing:
        sys.exit(f"{len(differing)} of {len(first)} answers differ: {', '.join(differing[:10])}")
    errors = sum(not all(isinstance(ids, list) for ids in choices) for choices in first.values())
    if errors:
        sys.exit(f"{errors} of {len(first)} requests have an error in place of an answer.")
    print(f"All {len(first)} answers are equal, token by token: {tokens} tokens, besides those that end an answer.")


if __name__ == "__main__":
    main()
