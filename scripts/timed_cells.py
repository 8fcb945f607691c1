#!/usr/bin/env python3
"""Described machines in real processes: a steady step emulated beside simulated, for every cell and policy.

    scripts/timed_cells.py --coordinator FILE [--layers 4] [--json FILE]

The twenty cells of planner/tests/described/cells.rs (models, shapes, machines, compressions) under every policy: the placement
that `plan --machine` chooses, its programs run by workers in which each instruction only lasts as long as the description says.
A policy that does not fit a cell's device is named and left out. Whatever else uses the machine is in the errors; `others` is its
share of the cores' time beside each run."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measuring

POLICIES = ["auto", "two-split", "one-split", "gpu-only", "resident", "cpu-only", "lia", "lia:spread", "flexgen", "flexgen:spread"]
LENGTHS = ["--prompt-len", 64, "--gen-len", 16]
GOAL = 0.02
# The machine of planner/tests/described/cases.rs with nothing remarkable.
PLAIN = """name = "plain"
[cpu]
name = "eight cores"
[cpu.bf16]
linear_gbps = 40.0
linear_tflops = 1.0
attention_gbps = 40.0
attention_tflops = 1.0
[gpu]
name = "a card"
decompress_gbps = 200.0
[gpu.bf16]
linear_gbps = 400.0
linear_tflops = 40.0
attention_gbps = 400.0
attention_tflops = 40.0
[link]
h2d_gbps = 20.0
d2h_gbps = 20.0
[memory]
dram_gib = 64.0
dram_gbps = 80.0
vram_gib = 8.0
"""
# Machine, model, batches, what is kept in 4 bits, chunks of attention.
CELLS = [
    ("ryzen7950x-a4000", "opt-30b", "1x50", "none", None),
    ("ryzen7950x-a4000", "opt-30b", "2x25", "none", None),
    ("ryzen7950x-a4000", "opt-30b", "1x100", "w4kv4", None),
    ("ryzen7950x-a4000", "opt-30b", "3x16", "w4kv4", None),
    ("ryzen7950x-a4000", "llama-3-8b", "1x1", "none", None),
    ("ryzen7950x-a4000", "llama-3-8b", "2x32", "none", None),
    ("ryzen7950x-a4000", "llama-3-8b", "1x64", "w4kv4", None),
    ("ryzen7950x-a4000", "llama-2-34b", "1x16", "w4kv4", None),
    ("spr-a100", "opt-30b", "1x1", "none", None),
    ("spr-a100", "opt-30b", "1x64", "none", None),
    ("spr-a100", "opt-66b", "2x16", "none", None),
    ("spr-h100", "opt-30b", "1x64", "none", None),
    ("spr-h100", "llama-3.2-3b", "1x8", "none", None),
    ("spr-h100", "opt-66b", "1x8", "none", None),
    ("plain", "llama-3.2-3b", "1x1", "none", None),
    ("plain", "llama-3.2-3b", "2x16", "none", None),
    ("plain", "llama-3-8b", "1x8", "w4kv4", None),
    ("plain", "opt-1.3b", "2x8", "none", "scores=4"),
    ("plain", "opt-1.3b", "1x16", "none", "scores=4"),
    ("plain", "opt-1.3b", "4x4", "w4kv4", None),
]


def name(cell):
    machine, model, batches, compress, chunks = cell
    parts = [machine, model, batches, "" if compress == "none" else compress, chunks or ""]
    return " ".join(part for part in parts if part)


def clocks():
    """Seconds: of the clock, of all cores at work, of this program's children at work. See proc_stat(5)."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, children.ru_utime + children.ru_stime


def others(before, after):
    """Share of the cores' time that was not this program's children's."""
    clock, busy, own = (end - begin for begin, end in zip(before, after))
    return max(0.0, busy - own) / (clock * os.cpu_count())


def run(arguments, cell, policy, plain):
    """What one run reports; None where the placement does not fit the device."""
    machine, model, batches, compress, chunks = cell
    command = [arguments.coordinator, "--machine", plain if machine == "plain" else machine, "--model", model]
    command += ["--batches", batches, "--compress", compress, "--policy", policy, "--layers", arguments.layers, *LENGTHS]
    command += ["--split-chunks", chunks] if chunks else []
    command += ["--device", "emulated:timed", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)["timed"]
    if "but the device has" in done.stderr:
        return None
    sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")


def measure(arguments, plain):
    lines = []
    print(f"{'cell':44}{'policy':16}{'simulated ms':>13}{'emulated ms':>13}{'error':>9}{'others':>8}")
    for cell in CELLS:
        for policy in POLICIES:
            before = clocks()
            timed = run(arguments, cell, policy, plain)
            share = others(before, clocks())
            if timed is None:
                print(f"{name(cell):44}{policy:16} does not fit the device")
                continue
            simulated, emulated, error = timed["simulated"]["step_ms"], timed["measured"]["step_ms"], timed["error"]
            print(f"{name(cell):44}{policy:16}{simulated:>13.3f}{emulated:>13.3f}{error:>+9.2%}{share:>8.0%}", flush=True)
            lines.append({"cell": name(cell), **timed, "policy": policy, "others": share})
            measuring.append(arguments.json, lines[-1])
    return lines


def medians(lines):
    print(f"\n{'policy':16}{'runs':>5}{'median error':>14}{'largest':>9}")
    for policy in POLICIES:
        errors = [line["error"] for line in lines if line["policy"] == policy]
        if errors:
            print(f"{policy:16}{len(errors):>5}{statistics.median(errors):>+14.2%}{max(errors, key=abs):>+9.2%}")
    if not lines:
        return
    reached = sum(abs(line["error"]) <= GOAL for line in lines)
    worst = max(lines, key=lambda line: abs(line["error"]))
    middle = statistics.median(line["error"] for line in lines)
    print(f"{'all':16}{len(lines):>5}{middle:>+14.2%}{worst['error']:>+9.2%}  ({worst['cell']}, {worst['policy']})")
    print(f"within {GOAL:.0%}: {reached} of {len(lines)}, {'reached' if reached == len(lines) else 'MISSED'}")


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "plain.toml")
        plain.write_text(PLAIN, encoding="utf-8")
        medians(measure(arguments, plain))


if __name__ == "__main__":
    main()
