#!/usr/bin/env python3
"""What selected KV (--kv-select) costs in accuracy, and what share of the cache new tokens read.

    cargo build --release -p workers --example selection
    scripts/selection.py FILE.gguf --tool target/release/examples/selection [--text CALIBRATION] TEXT...

TEXT are files of prose, 17,000 tokens at least: the last 128 tokens of four windows of 4096 are judged, against the
same model that attends to everything, in bf16. CALIBRATION is a text for the skew [default: tokens by seed]. Prints a
table: each rule by partial keys, and by the scores of attention themselves, which says what the rule alone costs. No
times."""

import argparse
import re
import subprocess
import sys

ALPHAS, MAXIMA, COLUMNS = (2, 4, 8), (0.1, 0.2, 0.5), ("0.25", "all")
LINE = re.compile(
    r"rule (?P<rule>\S+), (?P<columns>\d+) columns, (?P<tokens>\d+) tokens: (?P<read>[\d.]+) % of KV read, mean KL "
    r"divergence (?P<mean>[-\d.e]+) \+- (?P<error>[-\d.e]+), same most likely token (?P<same>[\d.]+) %"
)


def measured(arguments, columns):
    """The tool's lines of every rule over so many columns, by rule."""
    rules = [f"{alpha}:{most}:{columns}" for alpha in ALPHAS for most in MAXIMA]
    command = [arguments.tool, arguments.model, arguments.text, *arguments.texts, "--", *rules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{arguments.tool} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    found = [LINE.match(line) for line in done.stdout.splitlines()]
    if [line and line["rule"] for line in found] != rules:
        sys.exit(f"{arguments.tool} said something else:\n{done.stdout}")
    return {line["rule"]: line for line in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--text", default="seeded")
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    print("| alpha | columns | " + " | ".join(f"max {most}" for most in MAXIMA) + " |")
    print("| --- | --- |" + " --- |" * len(MAXIMA))
    by_columns = {columns: measured(arguments, columns) for columns in COLUMNS}
    for alpha in ALPHAS:
        for columns, lines in by_columns.items():
            row = [lines[f"{alpha}:{most}:{columns}"] for most in MAXIMA]
            cells = [f"{line['mean']} +- {line['error']}; {line['read']}% of KV; {line['same']}% same" for line in row]
            print(f"| {alpha} | {row[0]['columns']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
