#!/usr/bin/env python3
"""Draws prefill and decode tokens/s of one sequence over the length of its prompt beside llama.cpp, from the JSON
lines of scripts/peers/llama.py.

    scripts/plots/context.py LLAMA.jsonl OUT.svg"""

import json
import statistics
import sys
from pathlib import Path

import style
from matplotlib import pyplot, ticker

# Prefill beside few new tokens says something of every length, decode where there are some.
FEWEST_NEW = {"prefill": 1, "decode": 8}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if not line["contention"] and line["batch"] == 1]
    lengths = {}
    for line in lines:
        lengths.setdefault(line["model"], set()).add(line["prompt"])
    models = sorted(model for model, prompts in lengths.items() if len(prompts) > 1)
    if not models:
        sys.exit("No model has prompts of several lengths once the contended lines are discarded.")
    figure, all_axes = style.figure(columns=2)
    for axes, what in zip(all_axes, FEWEST_NEW):
        for model, line_style in zip(models, ("-", "--", ":")):
            for who, color in (("ours", "tab:blue"), ("llama.cpp", "tab:orange")):
                points = {}
                for line in lines:
                    if line["model"] == model and line["new"] >= FEWEST_NEW[what]:
                        points.setdefault(line["prompt"], []).append(line[who][what])
                prompts = sorted(points)
                values = [statistics.median(points[prompt]) for prompt in prompts]
                axes.plot(prompts, values, line_style, marker="o", color=color, label=f"{who}, {model}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.0f}"))
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(ticker.FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.set_title(what, fontsize=9)
        axes.set_xlabel("tokens of the prompt")
        axes.legend(fontsize=6)
    figure.supylabel("tokens/s", fontsize=9)
    style.save(figure, sys.argv[2])
    pyplot.close(figure)


if __name__ == "__main__":
    main()
