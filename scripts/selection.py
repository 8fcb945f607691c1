#!/usr/bin/env python3
"""What selected KV (--kv-select) costs in accuracy, and what share of the cache new tokens read.

    cargo build --release -p workers --example selection
    scripts/selection.py FILE.gguf --tool target/release/examples/selection [--text CALIBRATION] TEXT...

TEXT are files of prose, 17,000 tokens at least: the last 128 tokens of four windows of 4096 are judged, against the
same model that attends to everything, in bf16. CALIBRATION is a text for the skew [default: tokens by seed]. Prints a
table. No times."""

import argparse
import re
import subprocess
import sys

ALPHAS, SHARES = (2, 4, 8), (0.1, 0.2, 0.5)
LINE = re.compile(
    r"alpha (?P<alpha>\S+) max (?P<max>\S+), (?P<tokens>\d+) tokens: (?P<read>[\d.]+) % of KV read, mean KL "
    r"divergence (?P<mean>[-\d.e]+) \+- (?P<error>[-\d.e]+), same most likely token (?P<same>[\d.]+) %"
)


def measured(tool, model, calibration, texts):
    """The tool's lines, by alpha and share."""
    rules = [f"{alpha}:{share}" for alpha in ALPHAS for share in SHARES]
    command = [tool, model, calibration, *texts, "--", *rules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tool} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    found = [LINE.match(line) for line in done.stdout.splitlines()]
    if len(found) != len(rules) or not all(found):
        sys.exit(f"{tool} said something else:\n{done.stdout}")
    return {(float(line["alpha"]), float(line["max"])): line for line in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--text", default="seeded")
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    lines = measured(arguments.tool, arguments.model, arguments.text, arguments.texts)
    print("| alpha | " + " | ".join(f"max {share}" for share in SHARES) + " |")
    print("| --- |" + " --- |" * len(SHARES))
    for alpha in ALPHAS:
        cells = []
        for share in SHARES:
            line = lines[(float(alpha), float(share))]
            cells.append(f"{line['mean']} +- {line['error']}; {line['read']}% of KV; {line['same']}% same")
        print(f"| {alpha} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
