#!/usr/bin/env python3
"""Whether two runs of lm-eval were given the same texts: scripts/clients/same_texts.py ONE_DIR OTHER_DIR"""

import json
import sys
from pathlib import Path


def samples(folder):
    (path,) = sorted(Path(folder).rglob("samples_*.jsonl"))
    docs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {doc["doc_id"]: (doc["filtered_resps"], doc["exact_match"]) for doc in docs}


def main():
    one, other = samples(sys.argv[1]), samples(sys.argv[2])
    differing = [doc for doc in sorted(one | other) if one.get(doc) != other.get(doc)]
    if differing or not one:
        doc = differing[0] if differing else None
        sys.exit(f"{len(differing)} of {len(one)} answers differ; of {doc}: {one.get(doc)}, {other.get(doc)}")
    exact = sum(score for _, score in one.values()) / len(one)
    print(f"lm-eval: {len(one)} answers are those of transformers, exact match {exact:.2f}")


if __name__ == "__main__":
    main()
