#!/usr/bin/env python3
"""Two servers under the same load: `coordinator serve` and llama.cpp's `llama-server`, in turn, run after run.

    scripts/peers/serve.py DIR --coordinator FILE [--rounds 2] [--only TEXT]... [--requests 64] [--json FILE]
    scripts/peers/serve.py --table FILE

DIR is what scripts/peers.sh made. Each run starts a server of its own, with the same model, 16 slots of 1024 positions
and two threads, asks it by `coordinator bench-serve` with all requests at once, and ends it. In each round every load
goes to ours, to llama-server as it is, to ours again, and to llama-server with `-b 256`; the prompts of a round are the same for all
four. Prints generated tokens a second of both and the median of the paired ratios; writes a JSON line for each run,
with the load average before it. Runs during which the host or other programs took time of the cores are discarded."""

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
from pathlib import Path

from contention import Others, Stolen

THREADS, SLOTS, POSITIONS = 2, 16, 1024
MODEL = "smollm2-135m-bf16.gguf"
# Tokens of prompts and of answers, and the ratio that must be reached.
LOADS = [(64, 256, 1.6), (512, 128, 1.4)]
PEERS = {"llama-server": [], "llama-server -b 256": ["-b", "256"]}
OURS = "coordinator serve"
START_S, END_S = 300, 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command_of(arguments, who, port):
    model = arguments.dir / "models" / MODEL
    if who == OURS:
        command = [arguments.coordinator, "serve", "--model", model, "--slots", SLOTS, "--context", POSITIONS]
        command += ["--policy", "cpu-only", "--device", "none", "--cpu-threads", THREADS, *arguments.option]
    else:
        command = [arguments.dir / "bin" / "llama-server", "-m", model, "-np", SLOTS, "-c", SLOTS * POSITIONS]
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


def measure(arguments, who, prompt, new, seed):
    port = free_port()
    command = [arguments.coordinator, "bench-serve", "--url", f"http://127.0.0.1:{port}", "--rate", "inf", "--json"]
    command += ["--requests", arguments.requests, "--input-len", prompt, "--output-len", new, "--seed", seed]
    command += ["--api", "openai" if who == OURS else "llama"]
    load = os.getloadavg()[0]
    with Others() as others, Server(command_of(arguments, who, port), port), Stolen() as stolen:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench-serve of {who} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "who": who, "prompt": prompt, "new": new}
    line |= {"seed": seed, "load_average": load, "stolen": round(stolen.share(), 3), "others": round(others.share, 3)}
    return line | {"contention": stolen.contention() or others.contention(), "figures": json.loads(done.stdout)}


def run(arguments):
    lines = []
    for seed in range(1, arguments.rounds + 1):
        for prompt, new, _ in LOADS:
            if arguments.only and not any(text in f"{prompt}/{new}" for text in arguments.only):
                continue
            for turn, peer in enumerate(PEERS):
                pair = [measure(arguments, who, prompt, new, seed) for who in (OURS, peer)]
                for line in pair:
                    line |= {"turn": turn, "peer": peer}
                    figures = line["figures"]
                    print(
                        f"round {seed}, {prompt}/{new}, {line['who']}: {figures['output_throughput']:.1f} tokens/s, "
                        f"load average {line['load_average']:.1f}, stolen {line['stolen']:.1%}, others {line['others']:.1%}",
                        file=sys.stderr,
                        flush=True,
                    )
                    if arguments.json:
                        with open(arguments.json, "a", encoding="utf-8") as file:
                            file.write(json.dumps(line) + "\n")
                lines += pair
    return lines


def pairs(lines, prompt, new, peer):
    """Ours and the peer's of the same round and turn, both undisturbed."""
    of_pair = {}
    for line in lines:
        if (line["prompt"], line["new"], line["peer"]) == (prompt, new, peer) and not line["contention"]:
            of_pair.setdefault(line["seed"], {})["ours" if line["who"] == OURS else "peer"] = line
    return [(both["ours"], both["peer"]) for both in of_pair.values() if len(both) == 2]


def table(lines):
    discarded = sum(bool(line["contention"]) for line in lines)
    loads = [line["load_average"] for line in lines]
    print(f"{len(lines)} runs, {discarded} discarded; load average before them {min(loads):.1f} to {max(loads):.1f}\n")
    layout = "{:8} {:20} {:>8} {:>8} {:>6} {:>12} {:>3} {:>5} {:8} {:>9} {:>9}"
    head = ("load", "beside", "ours", "its", "ratio", "min..max", "n", "goal", "", "ITL p99", "its")
    print(layout.format(*head).rstrip())
    for prompt, new, goal in LOADS:
        for peer in PEERS:
            both = pairs(lines, prompt, new, peer)
            if not both:
                continue
            speeds = [[line["figures"]["output_throughput"] for line in pair] for pair in both]
            gaps = [[line["figures"]["itl_ms"]["p99"] for line in pair] for pair in both]
            ratios = [mine / its for mine, its in speeds]
            ratio = statistics.median(ratios)
            cells = [f"{prompt}/{new}", peer, *(f"{statistics.median(column):.1f}" for column in zip(*speeds))]
            cells += [f"{ratio:.2f}", f"{min(ratios):.2f}..{max(ratios):.2f}", len(both), goal]
            cells += ["met" if ratio >= goal else "MISSED"]
            print(layout.format(*cells, *(f"{statistics.median(column):.1f}" for column in zip(*gaps))).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", type=Path)
    parser.add_argument("--coordinator", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=64)
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
    table(run(arguments))


if __name__ == "__main__":
    main()
