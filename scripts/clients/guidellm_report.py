#!/usr/bin/env python3
"""Whether a report of guidellm is of whole answers: scripts/clients/guidellm_report.py FILE REQUESTS TOKENS

Every request must have been answered, with the tokens that were asked for, each in an event of its own with its time.
Anything else ends with code 1."""

import json
import sys
from pathlib import Path


def main():
    path, requests, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    benchmarks = json.loads(Path(path).read_text(encoding="utf-8"))["benchmarks"]
    assert len(benchmarks) == 1, f"{len(benchmarks)} benchmarks"
    of_requests = benchmarks[0]["requests"]
    assert not of_requests["errored"] and not of_requests["incomplete"], of_requests["errored"] or "some are incomplete"
    answered = of_requests["successful"]
    assert len(answered) == requests, f"{len(answered)} of {requests} are answered"
    for request in answered:
        timings = request["info"]["timings"]
        assert request["output_metrics"]["text_tokens"] == tokens, request["output_metrics"]
        # guidellm passes over events without text, such as the first part of a character.
        assert 0 < timings["token_iterations"] <= tokens <= timings["request_iterations"], timings
        assert timings["first_token_iteration"] <= timings["last_token_iteration"], timings
        assert request["input_metrics"]["text_tokens"] > 0 and request["output"], request
    print(f"guidellm: {requests} requests answered with {tokens} tokens each, an event a token: as expected")


if __name__ == "__main__":
    main()
