#!/usr/bin/env python3
"""How long a server gives no token after its worker was killed or stopped under load, and whether an answer changes.

    scripts/serving_recovery_rows.py --coordinator FILE --model MODEL [--rounds 20] [--json FILE]

Four streams run at a time; at an instant of the round's seed the worker is struck. What is printed is the longest time
without a token of any stream from then on, less what the server took to load the model when it started: at most GOAL_S
is asked. Each answer must be the one that a server gives that nobody strikes."""

import os
import random
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import measuring
from served_streams import Server

STRIKES = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
GOAL_S, STREAMS, NEW_TOKENS = 2.0, 4, 160
PROMPTS = [[100 + number, 7, 9] for number in range(STREAMS)]


def start(arguments):
    return Server(arguments.coordinator, arguments.model, "--slots", STREAMS, "--context", 512)


def strike(arguments, how, seed, expected):
    """Seconds without a token beyond the time to load, and that time."""
    server, told = start(arguments), []
    try:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(server.streams, PROMPTS, NEW_TOKENS, [told] * STREAMS)
            tokens = random.Random(seed).randint(1, STREAMS * NEW_TOKENS // 2)
            while len(told) < tokens and not asking.done():
                time.sleep(0.001)
            os.kill(server.worker(), STRIKES[how])
            struck = time.monotonic()
            if asking.result() != expected:
                sys.exit(f"{how}, seed {seed}: an answer changed")
        after = sorted(moment for moment in told if moment > struck)
        gaps = [later - earlier for earlier, later in zip([struck, *after], after)]
        return max(gaps) - server.loaded_s, server.loaded_s
    finally:
        server.end()


def main():
    arguments = measuring.parser(__doc__, "model", rounds=20).parse_args()
    server = start(arguments)
    expected = server.streams(PROMPTS, NEW_TOKENS, [[] for _ in PROMPTS])
    server.end()
    print(f"no token beyond loading, s (goal {GOAL_S:g})           median   longest   loading   answers changed")
    for how in STRIKES:
        found = [strike(arguments, how, seed, expected) for seed in range(arguments.rounds)]
        times, loads = zip(*found)
        row = f"worker {how}, {arguments.rounds} seeds".ljust(42)
        print(f"{row} {statistics.median(times):8.2f} {max(times):9.2f} {statistics.median(loads):9.2f}   0", flush=True)
        measuring.append(arguments.json, {"how": how, "beyond_loading_s": times, "loading_s": loads})


if __name__ == "__main__":
    main()
