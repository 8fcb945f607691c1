#!/usr/bin/env python3
"""Draws what `coordinator plan --chart CHART.json` wrote, and what `coordinator profile --nvme` keeps.

    scripts/plot.py gantt CHART.json OUT.svg   the steady layer, a row a lane, as in figs. 5 to 8 of Park-Egger
    scripts/plot.py split CHART.json OUT.svg   the layer's latency against the split, as in fig. 14
    scripts/plot.py drives NVME.json OUT.svg   how a weight was divided over drives, iteration by iteration (eqs. 2 to 4)

OUT may be .svg or .png. Needs matplotlib."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "plots"))

import style  # noqa: E402 (lies in the folder beside this file)
from matplotlib import pyplot  # noqa: E402

# The order of rows, top first, and what they are called.
LANES = {"s2d": "NVMe to GPU", "h2d": "host to GPU", "decompress": "decompress", "gpu": "GPU", "cpu": "CPU"}
# A label needs this share of the picture's width, per letter.
LETTER = 0.0095


def family(op):
    """Chunks share the colour of their operation."""
    base, dot, number = op.rpartition(".")
    return base if dot and number.isdigit() and base.lower() not in ("ln", "fc", "norm") else op


def gantt(chart, path):
    spans = chart["spans"]
    lanes = [lane for lane in LANES if any(span["lane"] == lane for span in spans)]
    width = chart["window_ms"]
    families = list(dict.fromkeys(family(op) for op in chart["ops"]))
    colours = {name: pyplot.get_cmap("tab20")(index % 20) for index, name in enumerate(families)}
    first = min(span["layer"] for span in spans)
    figure, axes = style.figure()
    figure.set_size_inches(10, 1.2 + 0.55 * len(lanes))
    for span in spans:
        row = len(lanes) - 1 - lanes.index(span["lane"])
        start, end = max(span["start_ms"], 0.0), min(span["end_ms"], width)
        # Every other batch hatched, so that the batches of one operation can be told apart.
        hatch = "////" if span["batch"] is not None and span["batch"] % 2 else None
        axes.broken_barh([(start, end - start)], (row - 0.38, 0.76), facecolor=colours[family(span["op"])], edgecolor="0.25", linewidth=0.4, hatch=hatch)
        if (end - start) / width > LETTER * len(span["op"]):
            box = {"facecolor": colours[family(span["op"])], "edgecolor": "none", "pad": 0.6}
            axes.text((start + end) / 2, row, span["op"], ha="center", va="center", fontsize=6, clip_on=True, bbox=box if hatch else None)
    for layer in range(1, int(round(width / chart["layer_ms"]))):
        axes.axvline(layer * chart["layer_ms"], color="0.2", linewidth=0.7, linestyle=":")
    axes.set_yticks(range(len(lanes)), [LANES[lane] for lane in reversed(lanes)])
    axes.set_xlim(0, width)
    axes.set_ylim(-0.6, len(lanes) - 0.4)
    axes.grid(visible=False)
    axes.set_xlabel("ms")
    batches = chart["batches"]
    placed = on_gpu(chart)
    axes.set_title(f"{placed}, {batches} batch{'es' if batches > 1 else ''}: {chart['layer_ms']:.2f} ms a layer (from layer {first})", fontsize=9)
    style.save(figure, path)
    pyplot.close(figure)


def on_gpu(chart):
    start, end = chart["gpu_interval"]
    if start == end:
        return "CPU alone"
    first, last = chart["ops"][start], chart["ops"][end - 1]
    return f"GPU {first}" if first == last else f"GPU {first} to {last}"


def split(chart, path):
    ops = chart["ops"]
    by_interval = {tuple(entry["interval"]): entry for entry in chart["intervals"]}
    count = len(ops)
    # The last place is the CPU alone.
    one = [by_interval[(start, count) if start < count else (0, 0)] for start in range(count + 1)]
    places = range(count + 1)
    figure, axes = style.figure()
    axes.plot(places, [entry["cpu_ms"] for entry in one], color="tab:orange", linestyle=":", label="CPU, sum")
    axes.plot(places, [entry["h2d_ms"] for entry in one], color="tab:green", linestyle=":", label="transfer, sum")
    axes.plot(places, [entry["paper_ms"] for entry in one], color="0.6", label="one split, closed form")
    axes.plot(places, [entry["simulated_ms"] for entry in one], color="tab:blue", marker="o", markersize=3, label="one split, simulated")
    # For every start the best end: what a second split gains.
    two = [min(entry["simulated_ms"] for (start, _), entry in by_interval.items() if entry["interval"][1] > start == place) for place in range(count)]
    axes.plot(range(count), two, color="tab:red", marker="s", markersize=3, label="two splits, the best second one")
    start, end = chart["gpu_interval"]
    chosen = by_interval[(start, end)]["simulated_ms"]
    axes.annotate(f"{on_gpu(chart)}: {chosen:.2f} ms", (start if start < end else count, chosen), textcoords="offset points", xytext=(8, -16), fontsize=7, arrowprops={"arrowstyle": "->", "linewidth": 0.6})
    axes.set_xticks(places, [*ops, "none"], rotation=60, ha="right", fontsize=7)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("first operation on the GPU")
    axes.set_ylabel("ms a layer, all batches")
    figure.legend(fontsize=7, loc="outside lower center", ncols=3)
    style.save(figure, path)
    pyplot.close(figure)


def drives(kept, path):
    """The largest weight: each drive's part and its finish time over the iterations."""
    weight = max(kept["weights"], key=lambda weight: weight["size_bytes"])
    iterations = weight["trajectory"]["iterations"]
    places = range(1, len(iterations) + 1)
    figure, (parts, times) = style.figure(columns=2)
    figure.set_size_inches(7, 3.2)
    for drive, directory in enumerate(kept["directories"]):
        blocks = [iteration["sizes"][drive] / max(sum(iteration["sizes"]), 1) for iteration in iterations]
        ended = [iteration["times_s"][drive] for iteration in iterations]
        parts.plot(places, [100 * share for share in blocks], marker="o", markersize=3, label=f"nvme{drive} ({directory})")
        times.plot(places, [None if end is None else 1e3 * end for end in ended], marker="o", markersize=3)
    parts.set_ylabel(f"% of {', '.join(weight['ops'])} ({weight['size_bytes'] / 2**20:.1f} MiB)")
    times.set_ylabel("finished after, ms")
    for axes in (parts, times):
        axes.set_xlabel("iteration")
        axes.set_xticks(places)
        axes.set_ylim(bottom=0)
    figure.legend(fontsize=7, loc="outside lower center", ncols=2)
    style.save(figure, path)
    pyplot.close(figure)


def main():
    pictures = {"gantt": gantt, "split": split, "drives": drives}
    if len(sys.argv) != 4 or sys.argv[1] not in pictures:
        sys.exit(__doc__)
    chart = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    pictures[sys.argv[1]](chart, sys.argv[3])


if __name__ == "__main__":
    main()
