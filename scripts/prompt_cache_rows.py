#!/usr/bin/env python3
"""How long a document takes to be computed, and to be read by another process that is asked about it.

    scripts/prompt_cache_rows.py --coordinator FILE [--model llama-3.2-1b] [--layers N] [--tokens 100000] [--json FILE]

Weights are seeded, so a known name needs no download. What is read comes from the drive the first time, since the
system is asked to forget the files, and from its page cache the second. The answer must be the same each time."""

import argparse
import json
import os
import random
import sys
import tempfile
import time

from served_streams import Server

QUESTION, NEW_TOKENS = 40, 8


def forget(folder):
    """Asks the system to drop the files of a folder from its page cache; how many bytes they are."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            file = os.open(os.path.join(place, name), os.O_RDONLY)
            size += os.fstat(file).st_size
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
    return size


def ask(arguments, folder, prompt):
    """Seconds until the first token, and the answer, of a server that ends then."""
    options = ["--dummy-weights", "--slots", 2, "--context", len(prompt) + 2 * NEW_TOKENS, "--prompt-cache", folder]
    if arguments.layers:
        options += ["--layers", arguments.layers]
    server = Server(arguments.coordinator, arguments.model, *options)
    told, sent = [], time.monotonic()
    answer = server.stream(prompt, NEW_TOKENS, 1, told, timeout_s=24 * 3600)
    server.stop()
    return told[0] - sent, answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--folder", help="where the store is made for the time being [default: the system's]")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    draw = random.Random(1)
    tokens = lambda count: [draw.randrange(20000) for _ in range(count)]  # noqa: E731
    prompt = tokens(arguments.tokens) + tokens(QUESTION)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        computed_s, expected = ask(arguments, folder, prompt)
        size = forget(folder)
        found = {"from the drive": ask(arguments, folder, prompt), "from the page cache": ask(arguments, folder, prompt)}
    layers = f", {arguments.layers} layers" if arguments.layers else ""
    print(f"{arguments.model}{layers}, a document of {arguments.tokens} tokens: time to the first token of an answer, s")
    print(f"computed                {computed_s:10.2f}   {len(prompt) / computed_s:.0f} tokens/s")
    rows = {"computed_s": computed_s}
    for how, (read_s, answer) in found.items():
        if answer != expected:
            sys.exit(f"{how}: another answer")
        print(f"read {how:19}{read_s:10.2f}   {size / read_s / 1e9:.2f} GB/s, {computed_s / read_s:.0f} times as fast")
        rows[f"{how.replace(' ', '_')}_s"] = read_s
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            line = {"model": arguments.model, "layers": arguments.layers, "tokens": arguments.tokens, "bytes": size}
            file.write(json.dumps({**line, **rows}) + "\n")


if __name__ == "__main__":
    main()
