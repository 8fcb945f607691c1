#!/usr/bin/env python3
"""How long a run takes to end after one of its workers was killed or stopped, and whether answers are lost.

    scripts/recovery_rows.py --coordinator FILE --model MODEL [--rounds 5] [--json FILE]

Answers a batch file with the emulated device, so that there are three workers; strikes one of them once some
answers are on disk; then resumes. Every answer that was on disk must still be there, byte for byte."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measuring

WORKERS = ["cpu worker", "gpu worker", "transfer worker"]
STRIKES = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
GOAL_S = 2.0
PROMPTS, NEW_TOKENS = 24, 24


def children(pid):
    """Process ids by what they call themselves."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8")
            name = (entry / "cmdline").read_text(encoding="utf-8").split("\0")[0]
        except OSError:
            continue
        if int(stat.rsplit(")", 1)[1].split()[1]) == pid:
            found[name.removeprefix("tandem ")] = int(entry.name)
    return found


def lines(path):
    """Whole lines of a file that may be written."""
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if '"error":null' in line]
    except FileNotFoundError:
        return []


def strike(arguments, folder, worker, how):
    """Seconds until the run had ended, and the answers that were on disk."""
    output = Path(folder, "out.jsonl")
    output.unlink(missing_ok=True)
    command = [arguments.coordinator, "--model", arguments.model, "--input", str(Path(folder, "in.jsonl"))]
    command += ["--output", str(output), "--quiet", "--batches", "2x2", "--device", "emulated", "--split", "scores:norm1"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(lines(output)) < 4:
        if run.poll() is not None:
            sys.exit(f"the run ended before it was struck: {run.stderr.read()}")
        time.sleep(0.01)
    names = children(run.pid)
    if worker not in names:
        sys.exit(f"no {worker} among {sorted(names)}")
    os.kill(names[worker], STRIKES[how])
    begun = time.monotonic()
    said = run.communicate()[1]
    took_s = time.monotonic() - begun
    if run.returncode != 1 or worker not in said:
        sys.exit(f"{worker} {how}: exit code {run.returncode}, {said}")
    before = lines(output)
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    if resumed.returncode != 0:
        sys.exit(f"--resume: {resumed.stderr}")
    after = lines(output)
    if len(after) != PROMPTS or not set(before) <= set(after):
        sys.exit(f"{worker} {how}: answers were lost")
    return took_s, len(before)


def main():
    arguments = measuring.parser(__doc__, "model", rounds=5).parse_args()
    print(f"until a run has ended, s (goal {GOAL_S:g})     median   longest   answers on disk, none lost")
    with tempfile.TemporaryDirectory() as folder:
        with open(Path(folder, "in.jsonl"), "w", encoding="utf-8") as file:
            for number in range(PROMPTS):
                prompt = [100 + number, 7, 9]
                file.write(json.dumps({"prompt": prompt, "max_tokens": NEW_TOKENS, "ignore_eos": True}) + "\n")
        for how in STRIKES:
            for worker in WORKERS:
                struck = [strike(arguments, folder, worker, how) for _ in range(arguments.rounds)]
                times, kept = [took_s for took_s, _ in struck], sum(kept for _, kept in struck)
                print(f"{worker} {how}".ljust(36) + f"{statistics.median(times):9.2f} {max(times):9.2f}   {kept}")
                measuring.append(arguments.json, {"worker": worker, "how": how, "until_end_s": times, "kept": kept})


if __name__ == "__main__":
    main()
