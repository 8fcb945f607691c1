#!/usr/bin/env python3
"""Whole models against llama.cpp and ik_llama.cpp: the same files, shapes and threads, in turn, run after run.

    scripts/peers/llama.py DIR --coordinator FILE --roofline FILE [--rounds 5] [--only TEXT]... [--json FILE]
    scripts/peers/llama.py --table FILE

DIR is what scripts/peers.sh made. Prints tokens/s of all, the median of the paired ratios to the fastest peer, and the
goal; writes a JSON line for each turn. ik_llama.cpp runs with and without -rtr, if DIR/bin has it. Peers have their
flash attention. The machine is measured between all runs; turns that ran while others used it, or while the host
took time of its cores, are discarded. --table prints the table of an earlier run's lines."""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contention import Stolen, contention

THREADS = 2
# Before each run: about two seconds after memory was freed, a guest hands it back to its host, which takes time of the
# cores.
REST_S = 3.0
# From the end of what is timed to the end of a program, about.
EXIT_S = 0.3
SMALL, LARGE, FOUR_BIT = "smollm2-135m-bf16", "llama-1.1b-bf16", "smollm2-135m-q4_1"
SMALL_K, LARGE_K, EXPERTS_K = "smollm2-135m-q4_k_m", "llama-1.1b-q4_k_m", "qwen3-30b-a3b-2l-q4_k_m"
# Types of which the large model alone is compared.
OTHER_TYPES = ["q8_0", "q6_k", "q4_0", "iq4_xs", "q3_k_m", "q2_k", "iq2_xs"]
# Name of a peer, its program in DIR/bin, and options.
PEERS = [
    ("llama.cpp", "llama-batched-bench", ["--output-format", "jsonl", "-fa", "on"]),
    ("ik_llama.cpp", "ik-llama-batched-bench", ["-fa", "on"]),
    ("ik_llama.cpp -rtr", "ik-llama-batched-bench", ["-fa", "on", "-rtr"]),
]

# Model, sequences, prompt tokens, new tokens, what is compared, ratio that must be reached. The shapes of the
# large model are shorter: only the rate matters, and no run may take minutes.
CASES = [
    (SMALL, 1, 512, 2, "prefill", 1.4),
    (SMALL, 1, 128, 64, "decode", 1.05),
    (SMALL, 8, 128, 64, "prefill", 1.4),
    (SMALL, 8, 128, 64, "decode", 1.5),
    (SMALL, 32, 128, 32, "decode", 1.5),
    (SMALL, 60, 128, 16, "decode", 1.5),
    (LARGE, 1, 512, 2, "prefill", 1.4),
    (LARGE, 1, 32, 24, "decode", 1.05),
    (LARGE, 8, 64, 12, "prefill", 1.4),
    (LARGE, 8, 64, 12, "decode", 1.5),
    (LARGE, 32, 16, 10, "decode", 1.5),
    (LARGE, 60, 16, 8, "decode", 1.5),
    (SMALL, 1, 2048, 16, "prefill", None),
    (SMALL, 1, 2048, 16, "decode", None),
    (SMALL, 1, 4096, 16, "prefill", None),
    (SMALL, 1, 4096, 16, "decode", None),
    (SMALL, 1, 8000, 16, "prefill", 3.0),
    (SMALL, 1, 8000, 16, "decode", None),
    (LARGE, 1, 8000, 2, "prefill", 2.5),
    (FOUR_BIT, 1, 512, 2, "prefill", None),
    (FOUR_BIT, 1, 128, 64, "decode", 1.2),
    (FOUR_BIT, 8, 128, 64, "decode", None),
    (FOUR_BIT, 32, 128, 32, "decode", None),
    (FOUR_BIT, 60, 128, 16, "decode", 2.0),
    (SMALL_K, 1, 512, 2, "prefill", 1.4),
    (SMALL_K, 1, 128, 64, "decode", 1.2),
    (SMALL_K, 8, 128, 64, "decode", 2.0),
    (SMALL_K, 60, 128, 16, "decode", 2.0),
    (LARGE_K, 1, 512, 2, "prefill", 1.4),
    (LARGE_K, 1, 32, 24, "decode", 1.2),
    (LARGE_K, 8, 64, 12, "decode", 2.0),
    (LARGE_K, 60, 16, 8, "decode", 2.0),
    (EXPERTS_K, 1, 32, 128, "decode", 1.0),
    (EXPERTS_K, 8, 32, 64, "decode", 1.5),
    (EXPERTS_K, 60, 32, 32, "decode", 1.5),
]
for other in OTHER_TYPES:
    for batch, prompt, new, what, goal in [
        (1, 512, 2, "prefill", 1.25),
        (1, 32, 24, "decode", 1.3),
        (8, 64, 12, "decode", 1.35),
        (32, 16, 10, "decode", 1.4),
    ]:
        CASES.append((f"llama-1.1b-{other}", batch, prompt, new, what, goal))
# Bytes that one decode step of a single sequence must read: every matrix but the embedding's other rows.
STEP_BYTES = {LARGE: 2 * (1_100_048_384 - 32000 * 2048)}
OF_DRAM = 0.90


def shapes(only):
    """Runs that are needed, each once for all it is compared in."""
    wanted = {}
    for model, batch, prompt, new, what, _ in CASES:
        name = f"{model} B={batch} prompt={prompt} new={new}"
        if not only or any(text in name for text in only):
            wanted.setdefault((model, batch, prompt, new), []).append(what)
    return wanted


class PeerEnded(Exception):
    """A peer was ended by a signal."""


def command_output(command, is_peer=False, folder=None):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=folder)
    if is_peer and done.returncode < 0:
        raise PeerEnded(f"{command[0].name} was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    # ik_llama.cpp prints its table to stderr.
    return done.stdout + done.stderr if is_peer else done.stdout


def ours(coordinator, model, batch, prompt, new, options):
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [coordinator, "--model", model, "--batches", f"1x{batch}", "--prompt-len", prompt]
        command += ["--gen-len", new, "--policy", "cpu-only", "--device", "none", "--cpu-threads", THREADS]
        command_output([*command, "--report", report, "--quiet", "--output", Path(folder) / "answers", *options])
        values = json.loads(report.read_text(encoding="utf-8"))
    timed_s = values["prefill_s"] + values["decode_s"]
    return {"prefill": values["prefill_tokens_per_s"], "decode": values["decode_tokens_per_s"], "timed_s": timed_s}


def theirs(bench, options, model, batch, prompt, new):
    command = [bench, "-m", model, "-npp", prompt, "-ntg", new, "-npl", batch, "-t", THREADS]
    command += ["-c", (prompt + new) * batch + 256, *options]
    # ik_llama.cpp writes a log where it runs.
    with tempfile.TemporaryDirectory() as folder:
        lines = command_output(command, is_peer=True, folder=folder).splitlines()
    as_json = [json.loads(line) for line in lines if line.startswith("{")]
    if as_json:
        values = as_json[-1]
        prefill_s, prefill, decode_s, decode = (values[key] for key in ("t_pp", "speed_pp", "t_tg", "speed_tg"))
    else:
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
        rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
        prefill_s, prefill, decode_s, decode = map(float, rows[-1][4:8])
    return {"prefill": prefill, "decode": decode, "timed_s": prefill_s + decode_s}


def present_peers(directory):
    return [(name, directory / "bin" / file, options) for name, file, options in PEERS if (directory / "bin" / file).exists()]


def check(roofline):
    return json.loads(command_output([roofline, "--check", "--threads", THREADS]))


def turn(arguments, shape, before):
    """Ours, then each peer, with the machine measured before, between and after."""
    name, batch, prompt, new = shape
    model = arguments.dir / "models" / f"{name}.gguf"
    time.sleep(REST_S)
    with Stolen() as of_mine:
        mine = ours(arguments.coordinator, model, batch, prompt, new, arguments.option)
    machine = [before, check(arguments.roofline)]
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "model": name, "batch": batch}
    line |= {"prompt": prompt, "new": new, "ours": mine, "stolen": {}}
    stolen = {"ours": (of_mine, mine)}
    for peer, program, options in present_peers(arguments.dir):
        time.sleep(REST_S)
        with Stolen() as of_peer:
            line[peer] = theirs(program, options, model, batch, prompt, new)
        stolen[peer] = (of_peer, line[peer])
        machine.append(check(arguments.roofline))
    line["machine"] = {key: statistics.mean([c[key] for c in machine]) for key in before if before[key]}
    line["contention"] = contention(machine)
    for who, (of_run, speeds) in stolen.items():
        timed_s = speeds["timed_s"] + EXIT_S
        line["stolen"][who] = round(of_run.share(timed_s), 3)
        line["contention"] = of_run.contention(timed_s) or line["contention"]
    return line, machine[-1]


def run(arguments):
    lines, left_out = [], set()
    before = check(arguments.roofline)
    for round_index in range(arguments.rounds):
        for shape in shapes(arguments.only):
            if shape in left_out:
                continue
            try:
                line, before = turn(arguments, shape, before)
            except PeerEnded as ended:
                left_out.add(shape)
                name, batch, prompt, new = shape
                print(f"{ended}: {name} B={batch} prompt={prompt} new={new} is left out", file=sys.stderr, flush=True)
                continue
            lines.append(line)
            if arguments.json:
                with open(arguments.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        print(f"round {round_index + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    return lines


def table(lines):
    kept = [line for line in lines if not line["contention"]]
    spins = [line["machine"]["spin_ns"] for line in kept if "spin_ns" in line["machine"]]
    if spins:
        print(f"round trip of the cores: median {statistics.median(spins):.0f} ns, {max(spins):.0f} at most")
    print(f"{len(lines)} turns, {len(lines) - len(kept)} discarded because the machine was busy\n")
    peers = [name for name, _, _ in PEERS if any(name in line for line in lines)]
    head = ("model", "B", "prompt", "new", "what", "ours", *peers, "ratio", "min..max", "n", "goal")
    widths = "".join(f" {{:>{max(8, len(peer))}}}" for peer in peers)
    layout = "{:23} {:>3} {:>6} {:>4} {:8} {:>8}" + widths + " {:>6} {:>12} {:>3} {:>5} {}"
    print(layout.format(*head, "").rstrip())
    for model, batch, prompt, new, what, goal in CASES:
        shape = (model, batch, prompt, new)
        # A line of an earlier run may lack a peer.
        speeds = [
            [line["ours"][what], *(line[peer][what] if peer in line else float("nan") for peer in peers)]
            for line in kept
            if key(line) == shape
        ]
        if not speeds:
            continue
        ratios = [mine / max(speed for speed in theirs if speed == speed) for mine, *theirs in speeds]
        ratio = statistics.median(ratios)
        verdict = "" if goal is None else "met" if ratio >= goal else "MISSED"
        present = ([speed for speed in column if speed == speed] for column in zip(*speeds))
        medians = (statistics.median(column or [float("nan")]) for column in present)
        cells = [*shape, what, *(f"{value:.1f}" for value in medians), f"{ratio:.2f}"]
        cells += [f"{min(ratios):.2f}..{max(ratios):.2f}", len(speeds), goal or "-", verdict]
        print(layout.format(*cells).rstrip())
    for model, size_bytes in STEP_BYTES.items():
        of_dram = {
            who: [
                line[who]["decode"] * size_bytes / 1e9 / line["machine"]["dram_gb_per_s"]
                for line in kept
                if line["model"] == model and line["batch"] == 1 and line["new"] > 2
            ]
            for who in ("ours", "llama.cpp")
        }
        if of_dram["ours"]:
            mine, peer = (statistics.median(values) for values in of_dram.values())
            verdict = "met" if mine >= OF_DRAM else "MISSED"
            print(f"\n{model}, decode at B=1, share of DRAM read: {mine:.2f} (llama.cpp {peer:.2f}), goal {OF_DRAM}: {verdict}")


def key(line):
    return line["model"], line["batch"], line["prompt"], line["new"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", type=Path)
    parser.add_argument("--coordinator", type=Path)
    parser.add_argument("--roofline", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT")
    parser.add_argument("--option", action="append", default=[], help="one more word for the coordinator")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.table:
        table([json.loads(line) for line in arguments.table.read_text(encoding="utf-8").splitlines()])
        return
    if not (arguments.dir and arguments.coordinator and arguments.roofline):
        parser.error("DIR, --coordinator and --roofline are needed")
    arguments.dir = arguments.dir.resolve()
    table(run(arguments))


if __name__ == "__main__":
    main()
