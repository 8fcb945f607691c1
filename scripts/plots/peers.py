#!/usr/bin/env python3
"""Draws decode tokens/s over the batch beside llama.cpp, from the JSON lines of scripts/peers/llama.py.

    scripts/plots/peers.py LLAMA.jsonl OUT.svg"""

import json
import statistics
import sys
from pathlib import Path

import style
from matplotlib import pyplot


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if not line["contention"] and line["new"] > 2]
    models = sorted({line["model"] for line in lines})
    if not models:
        sys.exit("No line is left once the contended ones are discarded.")
    figure, all_axes = style.figure(columns=len(models))
    for axes, model in zip([all_axes] if len(models) == 1 else all_axes, models):
        batches = sorted({line["batch"] for line in lines if line["model"] == model})
        for index, (who, color) in enumerate((("ours", "tab:blue"), ("llama.cpp", "tab:orange"))):
            values = [
                [line[who]["decode"] for line in lines if (line["model"], line["batch"]) == (model, batch)]
                for batch in batches
            ]
            middles = [statistics.median(column) for column in values]
            spread = [
                [middle - min(column) for middle, column in zip(middles, values)],
                [max(column) - middle for middle, column in zip(middles, values)],
            ]
            places = [place + 0.4 * index for place in range(len(batches))]
            bars = axes.bar(places, middles, 0.4, yerr=spread, color=color, capsize=2, label=who)
            labels = [f"{middle:.0f}" if middle >= 100 else f"{middle:.3g}" for middle in middles]
            axes.bar_label(bars, labels, fontsize=6, padding=2)
        axes.set_xticks([place + 0.2 for place in range(len(batches))], [str(batch) for batch in batches])
        axes.set_title(model, fontsize=9)
        axes.set_xlabel("batch")
        axes.legend(fontsize=7)
    figure.supylabel("decode, tokens/s", fontsize=9)
    style.save(figure, sys.argv[2])
    pyplot.close(figure)


if __name__ == "__main__":
    main()
