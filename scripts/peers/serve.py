#!/usr/bin/env python3
"""Two servers under the same load: `coordinator serve` and llama.cpp's `llama-server`, in turn, run after run.

    scripts/peers/serve.py DIR --coordinator FILE [--lengths FILE.csv] [--rounds 2] [--only TEXT]... [--json FILE]
    scripts/peers/serve.py --table FILE

DIR is what scripts/peers.sh made; --lengths is the Azure code trace of 2023, without which its cases are left out. Each run
starts a server of its own, with the same model, 16 slots and two threads, asks it by `coordinator bench-serve`, and ends it.

- All requests at once: ours, llama-server as it is, ours again, llama-server with `-b 256`, the prompts of a round the same.
- At 0.7 of the rate at which llama-server was saturated in this run: what is asked of the time between tokens.
- At 0.7, 0.85 and 1.0 of our own saturation: requests a second within the SLO, the best of these rates and of the one
  before, at which the other is not saturated, of each.
- The batch job beside the server: what HTTP costs.

Prints medians of paired ratios; writes a JSON line for each run. Runs during which the host or other programs took time of
the cores are discarded."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from contention import Others, Stolen

THREADS, SLOTS = 2, 16
OURS, BATCH = "coordinator serve", "batch job"
PEERS = {"llama-server": [], "llama-server -b 256": ["-b", "256"]}
START_S, END_S = 300, 60
LONGEST = 2048


@dataclass(frozen=True)
class Load:
    """`prompt` and `new` tokens of each request; without them lengths are drawn from the trace."""

    model: str
    prompt: int
    new: int
    requests: int
    least: float

    @property
    def name(self):
        lengths = f"{self.prompt}/{self.new}" if self.prompt else "azure code"
        return f"{self.model} {lengths}"

    @property
    def positions(self):
        return 1024 if self.prompt else LONGEST + 512


SMALL, SMALL_K, LARGE = "smollm2-135m-bf16", "smollm2-135m-q4_k_m", "llama-1.1b-bf16"
LOADS = [
    Load(SMALL, 64, 256, 48, 1.6),
    Load(SMALL, 512, 128, 48, 1.4),
    Load(SMALL, 0, 0, 64, 1.4),
    Load(SMALL_K, 64, 256, 48, 1.6),
    Load(SMALL_K, 512, 128, 48, 1.4),
    Load(SMALL_K, 0, 0, 64, 1.4),
    Load(LARGE, 64, 256, 16, 1.6),
    Load(LARGE, 512, 128, 16, 1.4),
    Load(LARGE, 0, 0, 16, 1.4),
]
# Loads that are also given at rates, and the one that the batch job answers too.
RATED, BATCHED = LOADS[1:3], LOADS[0]
LATENCY_RATE, GOODPUT_RATES = 0.7, (0.7, 0.85, 1.0)
LATENCY_LEAST, GOODPUT_LEAST, BATCH_LEAST = 3.0, 1.5, 0.95


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command_of(arguments, who, load, port):
    model = arguments.dir / "models" / f"{load.model}.gguf"
    if who == OURS:
        command = [arguments.coordinator, "serve", "--model", model, "--slots", SLOTS, "--context", load.positions]
        command += ["--policy", "cpu-only", "--device", "none", "--cpu-threads", THREADS, *arguments.option]
    else:
        command = [arguments.dir / "bin" / "llama-server", "-m", model, "-np", SLOTS, "-c", SLOTS * load.positions]
        command += ["-t", THREADS, "-tb", THREADS, *PEERS[who]]
    return [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]


class Server:
    """One of the two, from when it is ready until it has ended."""

    def __init__(self, command, port):
        self.command, self.port = command, port

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.log.seek(0)
                sys.exit(f"{self.command[0]} does not serve:\n{self.log.read()[-2000:].decode(errors='replace')}")
            time.sleep(0.2)
        return self

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def checked_output(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def served(arguments, who, load, rate, seed):
    """What bench-serve says of a server of its own, and whether the host took time of the cores."""
    port = free_port()
    command = [arguments.coordinator, "bench-serve", "--url", f"http://127.0.0.1:{port}", "--json", "--seed", seed]
    command += ["--rate", rate, "--requests", load.requests, "--api", "openai" if who == OURS else "llama"]
    if load.prompt:
        command += ["--input-len", load.prompt, "--output-len", load.new]
    else:
        command += ["--lengths", arguments.short_lengths]
    with Server(command_of(arguments, who, load, port), port), Stolen() as stolen:
        figures = json.loads(checked_output(command))
    return figures, stolen


def batch(arguments, load, seed):
    """The same of the batch job: generated tokens over the time that it computes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with open(path / "in.jsonl", "w", encoding="utf-8") as file:
            for number in range(load.requests):
                prompt = [(seed * 7919 + number * 104729 + place * 1299709) % 20000 for place in range(load.prompt)]
                file.write(json.dumps({"prompt": prompt, "max_tokens": load.new, "ignore_eos": True}) + "\n")
        command = [arguments.coordinator, "--model", arguments.dir / "models" / f"{load.model}.gguf"]
        command += ["--input", path / "in.jsonl", "--output", path / "out.jsonl", "--report", path / "report.json"]
        command += ["--batches", f"1x{SLOTS}", "--policy", "cpu-only", "--device", "none", "--cpu-threads", THREADS, "--quiet"]
        with Stolen() as stolen:
            checked_output(command)
        report = json.loads((path / "report.json").read_text(encoding="utf-8"))
    took_s = report["prefill_s"] + report["decode_s"]
    return {"output_throughput": report["generated_tokens"] / took_s}, stolen


def measure(arguments, who, load, rate, seed):
    began = os.getloadavg()[0]
    with Others() as others:
        found = batch(arguments, load, seed) if who == BATCH else served(arguments, who, load, rate, seed)
    figures, stolen = found
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": load.name, "who": who, "rate": rate}
    line |= {"seed": seed, "load_average": began, "stolen": round(stolen.share(), 3), "others": round(others.share, 3)}
    line |= {"contention": stolen.contention() or others.contention(), "figures": figures}
    print(
        f"round {seed}, {load.name} at {rate}, {who}: {figures['output_throughput']:.1f} tokens/s, load average "
        f"{began:.1f}, stolen {line['stolen']:.1%}, others {line['others']:.1%}",
        file=sys.stderr,
        flush=True,
    )
    return line


def saturation(lines, load, who):
    """Requests a second at which a server is saturated, from the runs with all requests at once."""
    rates = [
        line["figures"]["request_throughput"]
        for line in lines
        if (line["load"], line["who"], line["kind"]) == (load.name, who, "saturated")
    ]
    return statistics.median(rates)


def round_of(arguments, lines, load, seed):
    """All runs of a load in a round; yields lines."""
    peers = list(PEERS)
    for turn, peer in enumerate(peers):
        for who in (OURS, peer):
            yield measure(arguments, who, load, "inf", seed) | {"kind": "saturated", "beside": peer, "turn": turn}
    if load == BATCHED:
        for who in (OURS, BATCH):
            yield measure(arguments, who, load, "inf", seed) | {"kind": "batch", "beside": BATCH}
    if load in RATED:
        rate = round(LATENCY_RATE * saturation(lines, load, peers[0]), 3)
        for who in (OURS, peers[0]):
            yield measure(arguments, who, load, rate, seed) | {"kind": "latency", "beside": peers[0]}
        for share in GOODPUT_RATES:
            rate = round(share * saturation(lines, load, OURS), 3)
            for who in (OURS, peers[0]):
                yield measure(arguments, who, load, rate, seed) | {"kind": "goodput", "beside": peers[0]}


def run(arguments):
    lines = []
    for seed in range(1, arguments.rounds + 1):
        for load in LOADS:
            if arguments.only and not any(text in load.name for text in arguments.only):
                continue
            if not load.prompt and not arguments.lengths:
                continue
            for line in round_of(arguments, lines, load, seed):
                lines.append(line)
                if arguments.json:
                    with open(arguments.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    return lines


def pairs(lines, load, kind, peer):
    """Ours and the other's figures of the same round, all undisturbed: lists, as goodput is of several rates."""
    of_seed = {}
    kinds = ("latency", "goodput") if kind == "goodput" else (kind,)
    for line in lines:
        if (line["load"], line["beside"]) == (load.name, peer) and line["kind"] in kinds:
            both = of_seed.setdefault(line["seed"], ([], [], []))
            both[2 if line["contention"] else 0 if line["who"] == OURS else 1].append(line["figures"])
    return [(mine, its) for mine, its, disturbed in of_seed.values() if mine and its and not disturbed]


def best(figures, *path):
    values = []
    for value in figures:
        for name in path:
            value = value[name]
        values.append(value)
    return max(values)


# What is compared of runs of a kind: its name, where it stands in the figures, what is asked, whether less is better.
KINDS = {
    "saturated": ("tokens/s, all at once", ("output_throughput",), None, False),
    "batch": ("tokens/s, the batch job's", ("output_throughput",), BATCH_LEAST, False),
    "latency": ("p99 between tokens, ms", ("itl_ms", "p99"), LATENCY_LEAST, True),
    "goodput": ("requests/s within the SLO", ("request_goodput",), GOODPUT_LEAST, False),
}


def table(lines):
    discarded = sum(bool(line["contention"]) for line in lines)
    averages = [line["load_average"] for line in lines]
    print(f"{len(lines)} runs, {discarded} discarded; load average before them {min(averages):.1f} to {max(averages):.1f}\n")
    layout = "{:28} {:26} {:20} {:>8} {:>8} {:>6} {:>12} {:>3} {:>5} {}"
    print(layout.format("load", "what", "beside", "ours", "its", "ratio", "min..max", "n", "goal", "").rstrip())
    for kind, (what, path, least, less_is_better) in KINDS.items():
        for load in LOADS:
            for peer in [*PEERS, BATCH]:
                both = pairs(lines, load, kind, peer)
                if not both:
                    continue
                values = [[best(figures, *path) for figures in pair] for pair in both]
                ratios = [its / mine if less_is_better else mine / its if its else float("inf") for mine, its in values]
                ratio, asked = statistics.median(ratios), least or load.least
                cells = [load.name, what, peer, *(f"{statistics.median(column):.1f}" for column in zip(*values))]
                cells += [f"{ratio:.2f}", f"{min(ratios):.2f}..{max(ratios):.2f}", len(both), asked]
                print(layout.format(*cells, "met" if ratio >= asked else "MISSED"))


def shortened(lengths, folder):
    """The rows of the trace that fit, as a table of lengths."""
    rows = Path(lengths).read_text(encoding="utf-8").splitlines()
    fits = [row for row in rows[1:] if row.strip() and int(row.split(",")[-2]) <= LONGEST and int(row.split(",")[-1]) <= 500]
    path = Path(folder) / "lengths.csv"
    path.write_text("\n".join([rows[0], *fits]) + "\n", encoding="utf-8")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", type=Path)
    parser.add_argument("--coordinator", type=Path)
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="loads, for example 64/256")
    parser.add_argument("--option", action="append", default=[], help="one more word for coordinator serve")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.table:
        table([json.loads(line) for line in arguments.table.read_text(encoding="utf-8").splitlines()])
        return
    if not (arguments.dir and arguments.coordinator):
        parser.error("DIR and --coordinator are needed")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.lengths:
            arguments.short_lengths = shortened(arguments.lengths, folder)
        table(run(arguments))


if __name__ == "__main__":
    main()
