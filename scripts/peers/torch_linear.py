#!/usr/bin/env python3
"""torch's linears (oneDNN) over the cases of kernels/cases.txt, in turn with ours, sample by sample.

    scripts/peers/torch_linear.py --roofline FILE [--torch PYTHON] [--samples 9] [--rows 1,4,...] [--json FILE]
    scripts/peers/torch_linear.py --serve        torch's side of the pipe; needs torch

Two processes stay alive and take one sample at a time, never both at once: FILE --serve, and this script under
PYTHON. Forms: bf16 as a user calls it, bf16 with the weight prepacked by oneDNN, and f32, because a processor
without AVX512-BF16 emulates the first two. Weights rotate over more than a gigabyte on both sides."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from contention import stolen_s

THREADS = 2
FORMS = ("plain", "prepacked", "f32")
ROTATION_BYTES = 1280 << 20
SAMPLE_S = 0.05
# Ratio of the times, oneDNN's prepacked over ours, that must be reached: rows, least.
GOALS = {1: 1.0, 4: 1.0, 16: 1.0, 25: 1.0, 50: 1.0, 60: 1.0, 100: 0.95, 240: 0.95}
LIST = Path(__file__).resolve().parents[2] / "kernels" / "cases.txt"
# Samples that may be discarded for each that is wanted.
MOST_DISCARDED = 10
# Threads of the other side may still be spinning for its next parallel region.
REST_S = 0.05


def serve():
    """Answers lines `FORM N K ROWS` with `time_us` of one call."""
    import torch

    torch.set_num_threads(THREADS)
    print(json.dumps({"torch": torch.__version__, "isa": torch.backends.cpu.get_cpu_capability()}), flush=True)
    weights, held, calls = [], None, {}
    with torch.inference_mode():
        for line in sys.stdin:
            form, n, k, rows = line.split()
            n, k, rows = int(n), int(k), int(rows)
            # oneDNN chooses a packed layout for a batch size.
            wanted = (form, n, k, rows if form == "prepacked" else None)
            dtype = torch.float32 if form == "f32" else torch.bfloat16
            if held != wanted:
                weights.clear()
                copies = -(-ROTATION_BYTES // (n * k * dtype.itemsize))
                for _ in range(copies):
                    weight = (torch.rand(n, k) * 0.1 - 0.05).to(dtype) if not weights else first.clone()
                    first = weight if not weights else first
                    weights.append(pack(torch, weight, rows) if form == "prepacked" else weight)
                held = wanted
            x = (torch.rand(rows, k) - 0.5).to(dtype)
            if form == "prepacked":
                call = lambda weight: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
            else:
                call = lambda weight: torch.nn.functional.linear(x, weight)
            print(json.dumps({"time_us": 1e6 * sample(call, weights, calls, (form, n, k, rows))}), flush=True)


def pack(torch, weight, rows):
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def sample(call, weights, calls, case):
    turn = 0
    if case not in calls:
        call(weights[0])
        begin = time.perf_counter()
        call(weights[-1])
        calls[case] = max(1, int(SAMPLE_S / (time.perf_counter() - begin)) + 1)
    begin = time.perf_counter()
    for turn in range(calls[case]):
        call(weights[turn % len(weights)])
    return (time.perf_counter() - begin) / calls[case]


class Side:
    """A process that answers a line with a line."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        time.sleep(REST_S)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self):
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args[0]} ended before it answered.")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def cases(model, rows):
    """(n, k, rows) of the list's bf16 linears of `model`."""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        words = line.split("#")[0].split()
        if words[:3] == ["linear", "bf16", model]:
            for count in words[5].split(","):
                if not rows or int(count) in rows:
                    yield int(words[3]), int(words[4]), int(count)


def measure(arguments):
    mine = Side([arguments.roofline, "--serve", "--threads", str(THREADS)])
    peer = Side([arguments.torch, __file__, "--serve"])
    print("torch {torch}, {isa}".format(**peer.read()))
    lines = []
    for n, k, rows in cases(arguments.model, arguments.rows):
        line = {"n": n, "k": k, "rows": rows, "ours_us": [], "discarded": 0, "peaks": []}
        line |= {form: [] for form in arguments.forms}
        # All samples of a form follow each other, because packing takes longer than measuring.
        for form in arguments.forms:
            # A machine that never rests must not keep this from ending.
            while len(line[form]) < arguments.samples and line["discarded"] < MOST_DISCARDED * arguments.samples:
                before_s = stolen_s()
                ours = mine.ask(f"linear bf16 {arguments.model} {n} {k} {rows}")
                theirs = peer.ask(f"{form} {n} {k} {rows}")
                if ours["contention"] or stolen_s() > before_s:
                    line["discarded"] += 1
                    continue
                line["ours_us"].append(ours["time_us"])
                line["peaks"].append(ours["peaks"])
                line[form].append((theirs["time_us"], theirs["time_us"] / ours["time_us"]))
        if arguments.json:
            with open(arguments.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        lines.append(line)
        print(row(line, arguments.forms), flush=True)
    mine.close()
    peer.close()
    return lines


def row(line, forms):
    cells = [f"{line['n']}x{line['k']}", line["rows"], f"{middle(line['ours_us']):.0f}"]
    for form in forms:
        cells += [f"{middle([pair[0] for pair in line[form]]):.0f}", f"{middle([pair[1] for pair in line[form]]):.2f}"]
    return ("{:>12} {:>5} {:>9}" + " {:>10} {:>6}" * len(forms)).format(*cells)


def middle(values):
    return statistics.median(values) if values else float("nan")


def summary(lines, forms):
    """Mean over the shapes of the median paired ratios, for each batch."""
    print("\ntime of oneDNN over ours, mean of the shapes' medians (more than 1: ours is faster)")
    for rows in sorted({line["rows"] for line in lines}):
        same = [line for line in lines if line["rows"] == rows]
        ratios = {form: statistics.mean(middle([pair[1] for pair in line[form]]) for line in same) for form in forms}
        text = f"rows {rows:4}: " + ", ".join(f"{form} {ratio:.2f}" for form, ratio in ratios.items())
        goal = GOALS.get(rows)
        if goal and "prepacked" in ratios:
            text += f"; goal for prepacked {goal:.2f}: " + ("met" if ratios["prepacked"] >= goal else "MISSED")
        print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--roofline")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--model", default="opt-30b")
    parser.add_argument("--rows", type=lambda text: [int(count) for count in text.split(",")], default=[])
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    elif not arguments.roofline:
        parser.error("--roofline is needed")
    else:
        summary(measure(arguments), arguments.forms)


if __name__ == "__main__":
    main()
