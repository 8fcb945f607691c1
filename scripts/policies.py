#!/usr/bin/env python3
"""Every policy on this machine with the emulated device: predicted beside measured, and `auto` beside each, in turn.

    scripts/policies.py --coordinator FILE --roofline FILE [--rounds 5] [--only POLICY]... [--json FILE]
                        [-- ARGUMENTS OF THE RUN]

Each round measures the machine, with the device and without it, and runs all policies once from these profiles. The
prediction of a run is fixed before its workers start; its costs come from the profile and from a rehearsal. The
machine's speed is measured between all runs; runs beside which others used it are discarded. Prints medians over the
rounds: decode predicted and measured with the error, the error against the run's median step as often as it had steps
(which a second of somebody else's work does not move), and the paired ratio of auto's whole run to the policy's."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.contention import Stolen, contention

import measuring

POLICIES = ["auto", "two-split", "one-split", "gpu-only", "resident", "cpu-only", "lia", "lia:spread", "flexgen", "flexgen:spread"]
RUN = "--model opt-30b --dummy-weights --layers 4 --batches 2x4 --prompt-len 32 --gen-len 16".split()
ERROR, RATIO = 0.10, 1.05


def output(command, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def profiled(arguments, run, folder):
    """Measures the machine for a round: without the device, and with it for each number of threads that is compared."""
    of = [word for word in run if word != "--dummy-weights"]
    for words in [["profile", *of, "--device", "none"], ["plan", *of, "--device", "emulated"]]:
        output([arguments.coordinator, *words], XDG_CACHE_HOME=folder)


def one(arguments, run, policy, measured):
    """What a run says of itself, from a copy of the round's profiles: what others ran into does not refine them."""
    with tempfile.TemporaryDirectory() as folder:
        cache, report = Path(folder, "cache"), Path(folder, "report.json")
        shutil.copytree(measured, cache)
        command = [arguments.coordinator, *run, "--device", "emulated", "--policy", policy, "--quiet", "--report", report]
        with Stolen() as stolen:
            output(command, XDG_CACHE_HOME=cache)
        found = json.loads(report.read_text(encoding="utf-8"))
    return {
        "policy": policy,
        "chosen": found["policy"],
        "predicted": found["predicted"],
        "prefill_s": found["prefill_s"],
        "decode_s": found["decode_s"],
        "steady_decode_s": found["decode_step"]["median_s"] * (found["gen_len"] - 1),
    }, stolen


def measure(arguments, run):
    check = lambda: json.loads(output([arguments.roofline, "--check", "--threads", 2]))
    lines = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as measured:
            profiled(arguments, run, measured)
            before = check()
            for policy in arguments.only or POLICIES:
                line, stolen = one(arguments, run, policy, measured)
                after = check()
                contended = stolen.contention() or contention([before, after])
                line |= {"round": number, "contended": contended, "checks": [before, after]}
                before = after
                lines.append(line)
                measuring.append(arguments.json, line)
                print(f"  round {number}, {policy}: decode {line['decode_s']:.2f} s {contended or ''}", file=sys.stderr)
    return lines


def table(lines):
    kept = [line for line in lines if not line["contended"]]
    print(f"{len(kept)} of {len(lines)} runs kept; goals: error at most {ERROR:.0%}, auto at most {RATIO} of each")
    print(f"{'policy':16}{'chose':>12}{'predicted s':>14}{'decode s':>12}{'error':>9}{'to median step':>16}{'prefill error':>15}{'auto / it':>11}{'decode':>9}")
    autos = {line["round"]: line for line in kept if line["policy"] == "auto"}
    missed = []
    for policy in dict.fromkeys(line["policy"] for line in lines):
        mine = [line for line in kept if line["policy"] == policy]
        if not mine:
            print(f"{policy:16} every run was contended")
            continue
        told = [line for line in mine if line["predicted"]]
        middle = lambda values: statistics.median(list(values)) if values else float("nan")
        predicted = middle([line["predicted"]["decode_s"] for line in told])
        decode = middle([line["decode_s"] for line in mine])
        error = predicted / decode - 1
        steady = middle([line["predicted"]["decode_s"] / line["steady_decode_s"] - 1 for line in told])
        prefill = middle([line["predicted"]["prefill_s"] / line["prefill_s"] - 1 for line in told])
        total = lambda line: line["prefill_s"] + line["decode_s"]
        pairs = [(autos[line["round"]], line) for line in mine if line["round"] in autos]
        whole = middle([total(auto) / total(line) for auto, line in pairs])
        steps = middle([auto["decode_s"] / line["decode_s"] for auto, line in pairs])
        if not abs(error) <= ERROR or not whole <= RATIO:
            missed.append(policy)
        print(f"{policy:16}{mine[0]['chosen']:>12}{predicted:>14.3f}{decode:>12.3f}{error:>+9.1%}{steady:>+16.1%}{prefill:>+15.1%}{whole:>11.3f}{steps:>9.3f}")
    print(f"missed: {', '.join(missed)}" if missed else "all goals reached")


def main():
    arguments, run = sys.argv[1:], RUN
    if "--" in arguments:
        place = arguments.index("--")
        arguments, run = arguments[:place], arguments[place + 1 :]
    parser = measuring.parser(__doc__, "roofline", rounds=5)
    parser.add_argument("--only", action="append")
    table(measure(parser.parse_args(arguments), run))


if __name__ == "__main__":
    main()
