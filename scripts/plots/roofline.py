#!/usr/bin/env python3
"""Draws the share of the roofline over the batch, from the JSON lines of the roofline example.

    scripts/plots/roofline.py ROOFLINE.jsonl OUT.svg [TORCH.jsonl]

With the lines of scripts/peers/torch_linear.py, oneDNN's prepacked linears beside ours."""

import json
import statistics
import sys
from pathlib import Path

import style
from matplotlib import pyplot

TABLE = Path(__file__).resolve().parents[2] / "docs" / "bench" / "linears.jsonl"


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def goals():
    """Rows: the least mean share, and the goal, as the table of BENCHMARKS.md has them."""
    rows = {line["row"]: line["values"] for line in lines_of(TABLE)}
    return {int(count): (least, rows["goal"][count]) for count, least in rows["least"].items()}


def shares_of_onednn(path):
    """Roofline over time, for each shape and batch, as the peaks stood beside our samples."""
    shares = {}
    for line in lines_of(path):
        size = line["n"] * line["k"]
        dram = statistics.median(p["dram_gb_per_s"] for p in line["peaks"]) * 1e9
        peak = statistics.median(p["peak_gflop_per_s"] for p in line["peaks"]) * 1e9
        least_s = max(2 * size / dram, 2 * size * line["rows"] / peak)
        if line.get("prepacked"):
            time_s = statistics.median(pair[0] for pair in line["prepacked"]) / 1e6
            shares.setdefault(line["rows"], []).append(least_s / time_s)
    return shares


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    # A later line of a case replaces an earlier one.
    cases = {line["case"]: line for line in lines_of(sys.argv[1])}
    linears = [line for line in cases.values() if line["kind"] == "linear" and line["model"] == "opt-30b"]
    figure, axes = style.figure()
    shapes = sorted({(line["n"], line["k"], line["format"]) for line in linears})
    for n, k, form in shapes:
        points = sorted((line["rows"], line["share"]) for line in linears if (line["n"], line["k"]) == (n, k) and line["format"] == form)
        axes.plot(*zip(*points), marker="o", markersize=3, label=f"{form} {n}x{k}")
    if len(sys.argv) == 4:
        means = sorted((rows, statistics.mean(values)) for rows, values in shares_of_onednn(sys.argv[3]).items())
        axes.plot(*zip(*means), color="black", linestyle="--", label="oneDNN prepacked, mean")
    asked = goals()
    rows = sorted(asked)
    axes.fill_between(rows, [asked[r][0] for r in rows], [asked[r][1] for r in rows], color="0.85", label="least to goal")
    axes.set_xscale("log")
    ticks = sorted({line["rows"] for line in linears})
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_ylim(0, max(1.1, *axes.get_ylim()))
    axes.set_xlabel("batch (rows of the linear)")
    axes.set_ylabel("share of the roofline")
    axes.set_title("Linears of OPT-30B, two threads")
    figure.legend(fontsize=7, loc="outside lower center", ncols=3)
    style.save(figure, sys.argv[2])
    pyplot.close(figure)


if __name__ == "__main__":
    main()
