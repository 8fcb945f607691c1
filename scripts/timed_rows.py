#!/usr/bin/env python3
"""The runtime itself on the paper's printed tables: the steady layer measured beside simulated, each beside its goal.

    scripts/timed_rows.py --coordinator FILE --roofline FILE [--rounds 3] [--json FILE]

Runs every table in turn, with 8 layers and 32 tokens, in real processes in which each instruction only lasts as long as the
table says. The machine is measured between all runs; runs beside which others used it are discarded. Medians over the rounds."""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from policies import contention, output

import measuring

HERE = Path(__file__).parent
# Table, largest error of the layer's time, least overlap, largest distance of the overlap from the simulated one, goal.
CASES = [
    ("park-egger-6a", 0.02, 0.98, None, None),
    ("park-egger-7a", None, None, None, None),
    ("park-egger-7a-scores8", None, None, 0.01, 0.90),
]


def measure(arguments):
    check = lambda: json.loads(output([arguments.roofline, "--check", "--threads", 2]))
    before, lines = check(), []
    for number in range(arguments.rounds):
        for name, *_ in CASES:
            with tempfile.TemporaryDirectory() as folder:
                report = Path(folder, "report.json")
                tables = ["--tables", HERE / "tables" / f"{name}.json"]
                run = [*tables, "--device", "emulated:timed", "--layers", 8, "--gen-len", 32, "--report", report]
                output([arguments.coordinator, *run])
                timed = json.loads(report.read_text(encoding="utf-8"))["timed"]
            after = check()
            lines.append({"round": number, "table": name, "contended": contention([before, after]), **timed})
            before = after
            measuring.append(arguments.json, lines[-1])
            print(f"  round {number}, {name}: {timed['measured']['layer_ms']:.2f} ms {lines[-1]['contended'] or ''}", file=sys.stderr)
    return lines


def rows(lines):
    print(f"{'table':24}{'runs':>5}{'layer ms':>10}{'simulated':>11}{'error':>8}{'overlap':>9}{'simulated':>11}  goals")
    for name, error_max, overlap_min, apart_max, goal in CASES:
        kept = [line for line in lines if line["table"] == name and not line["contended"]]
        if not kept:
            print(f"{name:24} every run was contended")
            continue
        middle = lambda side, key: statistics.median(line[side][key] for line in kept)
        layer, expected = middle("measured", "layer_ms"), middle("simulated", "layer_ms")
        overlap, planned = middle("measured", "overlap"), middle("simulated", "overlap")
        error = layer / expected - 1
        goals = []
        if error_max is not None:
            goals.append(f"within {error_max:.0%} {'reached' if abs(error) <= error_max else 'MISSED'}")
        if overlap_min is not None:
            goals.append(f"overlap {overlap_min:.0%} {'reached' if overlap >= overlap_min else 'MISSED'}")
        if apart_max is not None:
            goals.append(f"overlap within {100 * apart_max:.0f} point {'reached' if abs(overlap - planned) <= apart_max else 'MISSED'}")
        if goal is not None:
            goals.append(f"goal {goal:.0%} {'reached' if overlap >= goal else 'missed'}")
        print(f"{name:24}{len(kept):>5}{layer:>10.2f}{expected:>11.2f}{error:>+8.2%}{overlap:>9.2%}{planned:>11.2%}  {', '.join(goals)}")


def main():
    parser = measuring.parser(__doc__, "roofline", rounds=3)
    rows(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
