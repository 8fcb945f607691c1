#!/usr/bin/env python3
"""Servers whose device holds the caches of a tenth of their slots, under policies that let the CPU attend for the others:
tokens a second, measured beside predicted, and that the answers are the CPU's.

    scripts/host_attention_rows.py --coordinator FILE --model FILE [--lengths FILE.csv] [--requests 40] [--rounds 2] [--json FILE]

Each run starts a server on the emulated device, which measures its iterations before the first request (`serve --costs`);
`plan --serve --costs` then predicts the very load by the simulator, and `bench-serve` gives it: all requests at once. Lengths
are the first rows of FILE.csv that fit (the Azure code trace of 2023), or drawn like them: long prompts, short answers. The
goal is an error of at most 15%."""

import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring
from served_streams import Server

SLOTS, TENTH = 20, 2
# Positions of a sequence, and those of them that a prompt may take.
CONTEXT, PROMPT_MAX = 2048, 1984
POLICIES = ["neo", "apex", "auto", "gpu-only"]
ERROR_MAX = 0.15
# Requests whose answers are compared.
COMPARED = 6


def drawn(count):
    """Prompts of 831 tokens and answers of 26 on average, as the trace's rows of up to 2048 tokens."""
    source, rows = random.Random(0), []
    while len(rows) < count:
        prompt, answer = round(source.gammavariate(1.7, 490)), round(source.gammavariate(1.2, 22))
        if 16 <= prompt <= PROMPT_MAX and 1 <= answer <= CONTEXT - PROMPT_MAX:
            rows.append((prompt, answer))
    return rows


def lengths(arguments):
    if not arguments.lengths:
        return drawn(arguments.requests)
    with open(arguments.lengths, encoding="utf-8") as file:
        rows = [(int(row[-2]), int(row[-1])) for row in csv.reader(file) if row and row[-1].strip().isdigit()]
    fit = [(prompt, answer) for prompt, answer in rows if prompt <= PROMPT_MAX and 1 <= answer <= CONTEXT - PROMPT_MAX]
    return fit[: arguments.requests]


def output(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} {command[1]}: {done.stderr}")
    return json.loads(done.stdout)


def answers(server, rows):
    """Of prompts of a seed, with the lengths of the first rows."""
    tokens = random.Random(1)
    prompts = [[tokens.randrange(20_000) for _ in range(prompt)] for prompt, _ in rows[:COMPARED]]
    return server.streams(prompts, max(answer for _, answer in rows[:COMPARED]), [[] for _ in prompts])


def run(arguments, policy, rows, folder, expected):
    costs, trace = folder / "costs.json", folder / "trace.csv"
    on = ["--device", f"emulated:vram={arguments.vram}", "--host-attention", policy, "--device-slots", TENTH]
    options = ["--slots", SLOTS, "--context", CONTEXT, "--prefill-chunk", CONTEXT + SLOTS, "--costs", costs]
    server = Server(arguments.coordinator, arguments.model, *options, on=map(str, on))
    try:
        load = ["--trace", trace, "--rate", "inf", "--json"]
        planned = output([arguments.coordinator, "plan", "--serve", "--costs", costs, *load])
        predicted = next(one for one in planned["policies"] if one["policy"] == policy)
        measured = output([arguments.coordinator, "bench-serve", "--url", server.address, *load])
        alike = answers(server, rows) == expected
    finally:
        server.end()
    shapes = {name: of["iterations"] for name, of in predicted["shapes"].items() if of["iterations"]}
    return {
        "policy": policy,
        "measured_tokens_per_s": measured["output_throughput"],
        "predicted_tokens_per_s": predicted["tokens_per_s"],
        "error": predicted["tokens_per_s"] / measured["output_throughput"] - 1,
        "answers_alike": alike,
        "failed": measured["failed"],
        "predicted_iterations": shapes,
        "costs": json.loads(costs.read_text(encoding="utf-8")),
    }


def measure(arguments):
    rows, lines = lengths(arguments), []
    positions = sum(prompt + answer for prompt, answer in rows) / len(rows)
    print(f"{len(rows)} requests of {positions:.0f} tokens on average; caches of {TENTH} of {SLOTS} slots on the device", file=sys.stderr)
    server = Server(arguments.coordinator, arguments.model, "--slots", SLOTS, "--context", CONTEXT)
    try:
        expected = answers(server, rows)
    finally:
        server.end()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = "".join(f"0,{prompt},{answer}\n" for prompt, answer in rows)
        (folder / "trace.csv").write_text(trace, encoding="utf-8")
        for number in range(arguments.rounds):
            for policy in arguments.policies:
                line = {"round": number, **run(arguments, policy, rows, folder, expected)}
                lines.append(line)
                measuring.append(arguments.json, line)
                print(f"  round {number}, {policy}: {line['measured_tokens_per_s']:.2f} tokens/s for {line['predicted_tokens_per_s']:.2f}", file=sys.stderr)
    return lines


def table(lines):
    print(f"{'policy':12}{'runs':>5}{'tokens/s':>10}{'predicted':>11}{'error':>9}  answers")
    for policy in dict.fromkeys(line["policy"] for line in lines):
        kept = [line for line in lines if line["policy"] == policy]
        middle = lambda key: statistics.median(line[key] for line in kept)  # noqa: E731
        error, alike = middle("error"), all(line["answers_alike"] and not line["failed"] for line in kept)
        said = "reached" if abs(error) <= ERROR_MAX else "MISSED"
        whose = "the CPU's" if alike else "NOT the CPU's"
        print(f"{policy:12}{len(kept):>5}{middle('measured_tokens_per_s'):>10.2f}{middle('predicted_tokens_per_s'):>11.2f}{error:>+9.1%}  {whose}, within {ERROR_MAX:.0%} {said}")


def main():
    parser = measuring.parser(__doc__, "model", rounds=2)
    parser.add_argument("--lengths")
    parser.add_argument("--vram", default="1GiB")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    lines = measure(parser.parse_args())
    table(lines)
    if not all(line["answers_alike"] for line in lines):
        sys.exit("Some answers are not the CPU's.")


if __name__ == "__main__":
    main()
