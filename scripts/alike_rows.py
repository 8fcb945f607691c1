#!/usr/bin/env python3
"""Prompts that begin alike, computed together and each whole, in turn.

    scripts/alike_rows.py --coordinator FILE --model MODEL [--rounds 3] [--json FILE] [-- ARGUMENTS OF THE RUN]

Makes batch files of seeded random tokens: an instruction with which all prompts begin, and 20 to 60 tokens of each prompt's
own. Both ways must give the same bytes. Prints the medians of prefill over the rounds, and the paired ratio with
its least and greatest."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring

# Prompts, tokens that all begin with.
CASES = [(64, 100), (64, 400), (32, 1500)]
OWN, NEW_TOKENS, TOKENS_MAX = (20, 60), 8, 1000


def write(path, prompts, common):
    draw = random.Random(prompts * common)
    tokens = lambda count: [draw.randrange(10, TOKENS_MAX) for _ in range(count)]
    instruction = tokens(common)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(prompts):
            prompt = instruction + tokens(draw.randint(*OWN))
            file.write(json.dumps({"prompt": prompt, "max_tokens": NEW_TOKENS, "ignore_eos": True}) + "\n")


def run(arguments, folder, options):
    answers, report = Path(folder, "out.jsonl"), Path(folder, "report.json")
    command = [arguments.coordinator, "--model", arguments.model, "--input", Path(folder, "in.jsonl"), "--output", answers]
    command += ["--force", "--quiet", "--report", report, *arguments.run, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return answers.read_bytes(), json.loads(report.read_text(encoding="utf-8"))


def main():
    parser = measuring.parser(__doc__, "model", rounds=3)
    parser.add_argument("run", nargs="*", metavar="ARGUMENT")
    arguments = parser.parse_args()
    print("prompts that begin alike: prefill, s           whole   together   times as fast (least, greatest pair)")
    for prompts, common in CASES:
        pairs = []
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder, "in.jsonl"), prompts, common)
            for _ in range(arguments.rounds):
                (whole, before), (together, after) = (run(arguments, folder, o) for o in (["--no-prefix-sharing"], []))
                if whole != together:
                    sys.exit("the answers differ: this is a defect, please report it")
                pairs.append((before["prefill_s"], after["prefill_s"]))
        ratios = sorted(before / after for before, after in pairs)
        shared = after["shared_prompt_tokens"] / (after["shared_prompt_tokens"] + after["prefill_tokens"])
        medians = [statistics.median(times) for times in zip(*pairs)]
        print(f"{prompts} with {common:4} tokens in common, {100 * shared:.0f}% shared".ljust(44)
              + f"{medians[0]:8.2f} {medians[1]:10.2f}   {statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f}; n {len(ratios)})")
        measuring.append(arguments.json, {"prompts": prompts, "common": common, "pairs_s": pairs, "shared": shared})


if __name__ == "__main__":
    main()
