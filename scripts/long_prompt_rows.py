#!/usr/bin/env python3
"""How long tokens of 16 streams are apart while a prompt of 7,000 tokens is computed beside them.

    scripts/long_prompt_rows.py --coordinator FILE --model MODEL [--rounds 3] [--step-ms 100] [--json FILE]

At most twice `--step-ms` is asked of the longest time between two tokens of a stream."""

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import measuring
from served_streams import Server

STREAMS, PROMPT, LONG_PROMPT, NEW_TOKENS, BEFORE_S = 16, 64, 7000, 400, 1.0


def gaps_beside(server, seed):
    """Between two tokens of a stream from when the long prompt was sent until its first token, s."""
    draw = random.Random(seed)
    prompt = lambda length: [draw.randrange(20000) for _ in range(length)]  # noqa: E731
    prompts, long_prompt = [prompt(PROMPT) for _ in range(STREAMS)], prompt(LONG_PROMPT)
    tolds, told_of_long = [[] for _ in prompts], []
    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(server.streams, prompts, NEW_TOKENS, tolds)
        while not all(tolds):
            time.sleep(0.01)
        time.sleep(BEFORE_S)
        sent = time.monotonic()
        server.stream(long_prompt, 1, seed, told_of_long)
        streams.result()
    answered = told_of_long[0]
    gaps = []
    for told in tolds:
        gaps += [later - earlier for earlier, later in zip(told, told[1:]) if earlier < answered and later > sent]
    return gaps, answered - sent


def main():
    parser = measuring.parser(__doc__, "model", rounds=3)
    parser.add_argument("--step-ms", type=int, default=100)
    arguments = parser.parse_args()
    goal_ms = 2 * arguments.step_ms
    print(f"{STREAMS} streams beside a prompt of {LONG_PROMPT}: between two tokens, ms (goal {goal_ms})")
    options = ["--slots", STREAMS + 1, "--context", 8192, "--step-ms", arguments.step_ms]
    server = Server(arguments.coordinator, arguments.model, *options)
    for seed in range(arguments.rounds):
        gaps, prompt_s = gaps_beside(server, seed)
        median_ms, longest_ms = 1000 * statistics.median(gaps), 1000 * max(gaps)
        verdict = "met" if longest_ms <= goal_ms else "MISSED"
        print(f"median {median_ms:.0f}, longest {longest_ms:.0f}, prompt computed in {prompt_s:.1f} s   {verdict}", flush=True)
        line = {"median_ms": median_ms, "longest_ms": longest_ms, "prompt_s": prompt_s, "step_ms": arguments.step_ms}
        measuring.append(arguments.json, line)
    server.end()


if __name__ == "__main__":
    main()
