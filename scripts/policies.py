#!/usr/bin/env python3
"""Every policy on this machine with the emulated device: predicted beside measured, and `auto` beside each, in turn.

    scripts/policies.py --coordinator FILE --roofline FILE [--rounds 5] [--only POLICY]... [--json FILE]
                        [-- ARGUMENTS OF THE RUN]

Each round runs all policies once. The prediction of a run is fixed before its workers start; its costs come from a
profile measured right before, and from a rehearsal. The machine is measured
between all runs; runs beside which others used it are discarded. Prints medians over the rounds: decode predicted and measured with the error, the error against the
run's median step as often as it had steps (which a second of somebody else's work does not move), and the paired ratio of
auto's whole run to the policy's."""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.contention import Stolen, contention

POLICIES = ["auto", "two-split", "one-split", "gpu-only", "cpu-only", "lia", "lia:spread", "flexgen", "flexgen:spread"]
RUN = "--model opt-30b --dummy-weights --layers 4 --batches 2x4 --prompt-len 32 --gen-len 16".split()
# Placements that need no search and so measure nothing themselves, and the device that they use.
GIVEN = {"cpu-only": "none", "gpu-only": "emulated"}
ERROR, RATIO = 0.10, 1.05


def output(command, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def measure(arguments, run):
    check = lambda: json.loads(output([arguments.roofline, "--check", "--threads", 2]))
    before = check()
    lines = []
    for number, policy in itertools.product(range(arguments.rounds), arguments.only or POLICIES):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            if policy in GIVEN:
                of = [word for word in run if word != "--dummy-weights"]
                profile = [arguments.coordinator, "profile", *of, "--device", GIVEN[policy]]
                output(profile, XDG_CACHE_HOME=folder)
            command = [arguments.coordinator, *run, "--device", "emulated", "--policy", policy]
            with Stolen() as stolen:
                output([*command, "--quiet", "--report", report], XDG_CACHE_HOME=folder)
            found = json.loads(report.read_text(encoding="utf-8"))
        after = check()
        line = {
            "round": number,
            "policy": policy,
            "chosen": found["policy"],
            "predicted": found["predicted"],
            "prefill_s": found["prefill_s"],
            "decode_s": found["decode_s"],
            "steady_decode_s": found["decode_step"]["median_s"] * (found["gen_len"] - 1),
            "contended": stolen.contention() or contention([before, after]),
            "checks": [before, after],
        }
        before = after
        lines.append(line)
        if arguments.json:
            with open(arguments.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        print(f"  round {number}, {policy}: decode {line['decode_s']:.2f} s {line['contended'] or ''}", file=sys.stderr)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--roofline", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append")
    parser.add_argument("--json")
    table(measure(parser.parse_args(arguments), run))


if __name__ == "__main__":
    main()
