#!/usr/bin/env python3
"""200 requests to a server, replayed in the real processes, in which nothing but time passes: each iteration measured beside
simulated.

    scripts/timed_serving_rows.py --coordinator FILE [--rounds 1] [--json FILE] [--charts FOLDER]

`plan --serve --timed` decides and runs as a server does, on the described machine; iterations have the simulated shapes and
rows. The goal is that each lasts within 5% of the simulated time. What other programs take of the cores is said beside it:
lanes that should wake and cannot are late. FOLDER gets two layers of an iteration under each policy, for
`scripts/plot.py gantt`."""

import json
import statistics
import subprocess
import sys

from peers.contention import Others

import measuring

MACHINE = ["--machine", "g4dn-4xlarge", "--model", "llama-2-7b"]
REQUESTS = ["--requests", "200", "--input-len", "60"]
# Tokens of each answer; where rows lag, a token takes as many iterations as there are layers, and one.
POLICIES = {"neo": 30, "apex": 30, "auto": 10}
NEAR = 0.05


def run(arguments, policy):
    command = [arguments.coordinator, "plan", "--serve", *MACHINE, *REQUESTS, "--output-len", POLICIES[policy], "--timed", policy, "--json"]
    if arguments.charts:
        command += ["--chart", f"{arguments.charts}/{policy}.json"]
    with Others() as others:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{policy}: {done.stderr}")
    return {"others_share": others.share, **json.loads(done.stdout)["timed"]}


def error(one):
    return one["measured_ms"] / one["simulated_ms"] - 1


def table(lines):
    head = f"{'policy':8}{'iterations':>11}{'two batches':>12}{'async':>7}{'slower':>7}{'all':>9}{'median':>9}{'largest':>9}{'within 5%':>11}{'others':>8}"
    print(head)
    for line in lines:
        iterations = line["iterations"]
        errors = sorted(map(error, iterations))
        count = lambda shape: sum(one["shape"] == shape for one in iterations)  # noqa: E731
        total = sum(one["measured_ms"] for one in iterations) / sum(one["simulated_ms"] for one in iterations) - 1
        near = sum(abs(one) <= NEAR for one in errors)
        largest = max(errors, key=abs)
        goal = "reached" if near == len(errors) else "MISSED"
        same = "" if line["same_iterations"] else ", NOT the simulated iterations"
        print(
            f"{line['policy']:8}{len(errors):>11}{count('pipelined'):>12}{count('async'):>7}{line['slow_motion']:>7}{total:>+9.2%}"
            f"{statistics.median(errors):>+9.2%}{largest:>+9.2%}{near:>11}{line['others_share']:>8.0%}  {goal}{same}"
        )


def main():
    parser = measuring.parser(__doc__, rounds=1)
    parser.add_argument("--charts")
    arguments = parser.parse_args()
    lines = []
    for number in range(arguments.rounds):
        for policy in POLICIES:
            lines.append({"round": number, **run(arguments, policy)})
            measuring.append(arguments.json, lines[-1])
    table(lines)
    if not all(line["same_iterations"] for line in lines):
        sys.exit("Other iterations ran than were simulated.")


if __name__ == "__main__":
    main()
