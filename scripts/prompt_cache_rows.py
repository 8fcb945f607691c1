#!/usr/bin/env python3
"""How long a document takes to be computed, and to be read by another process that is asked about it.

    scripts/prompt_cache_rows.py --coordinator FILE [--model llama-3.2-1b] [--layers N] [--tokens 100000] [--questions 20]

Weights are seeded, so a known name needs no download. Three servers are asked, each a process of its own: one without a
store, one that computes the document and keeps it, and one that finds it. The first and the last answer all questions, to
the same tokens, and the last computes of each prompt what lies behind the document's last full page alone. What it reads for
its first question comes from the drive, since the system is asked to forget the files, and once more from the page cache."""

import json
import os
import random
import statistics
import sys
import tempfile
import time

import measuring
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


def ask(arguments, prompts, folder=None):
    """Of a server of its own: seconds until the first token of each answer, the answers, and what each found computed."""
    options = ["--dummy-weights", "--slots", 2, "--context", len(prompts[0]) + 2 * NEW_TOKENS]
    if folder:
        options += ["--prompt-cache", folder]
    if arguments.layers:
        options += ["--layers", arguments.layers]
    server = Server(arguments.coordinator, arguments.model, *options)
    took, answers, found = [], [], []
    for prompt in prompts:
        told, usages, sent = [], [], time.monotonic()
        answers.append(server.stream(prompt, NEW_TOKENS, 1, told, timeout_s=24 * 3600, usages=usages))
        took.append(told[0] - sent)
        found.append(usages[0]["prompt_tokens_details"]["cached_tokens"])
    server.stop()
    return took, answers, found


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--folder", help="where the store is made for the time being [default: the system's]")
    arguments = parser.parse_args()
    draw = random.Random(1)
    tokens = lambda count: [draw.randrange(20000) for _ in range(count)]  # noqa: E731
    document = tokens(arguments.tokens)
    prompts = [document + tokens(QUESTION) for _ in range(arguments.questions)]
    page = 1024 if arguments.tokens > 32768 else 256
    whole_pages = arguments.tokens // page * page
    (computed_s, *in_memory_s), expected, _ = ask(arguments, prompts)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        (kept_s,), kept, _ = ask(arguments, prompts[:1], folder)
        size = forget(folder)
        (drive_s, *_), answers, found = ask(arguments, prompts, folder)
        (cache_s,), again, _ = ask(arguments, prompts[:1], folder)
    if not (answers == expected and kept == again == expected[:1]):
        sys.exit("another answer")
    if min(found) < whole_pages:
        sys.exit(f"only {min(found)} tokens of a prompt were found, {whole_pages} are in full pages")
    memory_s = statistics.median(in_memory_s)
    layers = f", {arguments.layers} layers" if arguments.layers else ""
    print(f"{arguments.model}{layers}, a document of {arguments.tokens} tokens: time to the first token of an answer, s")
    print(f"computed                {computed_s:10.2f}   {len(prompts[0]) / computed_s:.0f} tokens/s")
    print(f"computed and kept       {kept_s:10.2f}   {size / 1e9:.2f} GB")
    print(f"found in memory         {memory_s:10.2f}")
    rows = {"computed_s": computed_s, "kept_s": kept_s, "in_memory_s": memory_s}
    for how, took_s in {"from the drive": drive_s, "from the page cache": cache_s}.items():
        print(f"read {how:19}{took_s:10.2f}   {computed_s / took_s:.0f} times as fast")
        rows[f"{how.replace(' ', '_')}_s"] = took_s
    print(f"{len(prompts)} questions: the same answers, {min(found)} tokens of the document found for each")
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            line = {"model": arguments.model, "layers": arguments.layers, "tokens": arguments.tokens, "bytes": size}
            line |= {"questions": len(prompts), "found": min(found)}
            file.write(json.dumps({**line, **rows}) + "\n")


if __name__ == "__main__":
    main()
