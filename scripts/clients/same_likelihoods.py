#!/usr/bin/env python3
"""Whether two runs of lm-eval found the same: scripts/clients/same_likelihoods.py SERVED_DIR TRANSFORMERS_DIR TOLERANCE

Compares the logarithm of each choice's likelihood and whether greedy decoding would say it, choice by choice, and the
metrics. Differences end with code 1."""

import json
import sys
from pathlib import Path


def samples(folder):
    files = sorted(Path(folder).rglob("samples_*.jsonl"))
    if len(files) != 1:
        sys.exit(f"{folder} has {len(files)} files of samples")
    docs = {}
    for line in files[0].read_text(encoding="utf-8").splitlines():
        doc = json.loads(line)
        answers = [answer[0] if isinstance(answer[0], list) else answer for answer in doc["filtered_resps"]]
        likelihoods = [(float(value), str(greedy) == "True") for value, greedy in answers]
        docs[doc["doc_id"]] = (likelihoods, doc["acc"], doc["acc_norm"])
    return docs


def main():
    served, reference = samples(sys.argv[1]), samples(sys.argv[2])
    tolerance = float(sys.argv[3])
    assert served.keys() == reference.keys() and served, (served.keys(), reference.keys())
    worst, count = 0.0, 0
    for doc, (of_server, *metrics) in served.items():
        of_reference, *expected = reference[doc]
        assert len(of_server) == len(of_reference), doc
        assert metrics == expected, (doc, metrics, expected)
        for (mine, greedy), (other, other_greedy) in zip(of_server, of_reference):
            worst, count = max(worst, abs(mine - other)), count + 1
            assert greedy == other_greedy, (doc, mine, other)
    accuracy = sum(metrics[1] for metrics in served.values()) / len(served)
    verdict = "as expected" if worst <= tolerance else f"more than {tolerance}"
    print(f"lm-eval: {count} choices of {len(served)} questions, accuracy {accuracy:.2f}, as through transformers;")
    print(f"  the logarithms of their likelihoods differ by {worst:.6f} at most: {verdict}")
    sys.exit(worst > tolerance)


if __name__ == "__main__":
    main()
