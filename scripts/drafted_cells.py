#!/usr/bin/env python3
"""Speculative decoding on described machines: the predicted gain over the best plan without drafts, and the steps that verify
drafts in real processes.

    scripts/drafted_cells.py --coordinator FILE [--json FILE]

For each machine, model and acceptance: `plan` with drafts that take no time, and `--device emulated:timed` with the same options,
whose workers run the chosen programs with the predicted time for each instruction."""

import json
import subprocess
import sys

import measuring

# Cards of 16 and 24 GB.
MACHINES = ["ryzen7950x-a4000", "ryzen7950x-rtx4090"]
# Model, batches, compression: what fits in the machines' host memory.
MODELS = [("opt-30b", "1x1", "none"), ("opt-30b", "1x8", "none"), ("llama-3-70b", "1x1", "w4"), ("llama-3-70b", "1x8", "w4")]
ACCEPTANCES = [0.6, 0.8]
LENGTHS = ["--prompt-len", 64, "--gen-len", 128]
EMULATED_LENGTHS = ["--prompt-len", 64, "--gen-len", 8]
GOAL = 0.05


def answer(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    arguments = measuring.parser(__doc__).parse_args()
    worst = 0.0
    print(f"{'machine':20}{'model':13}{'batches':9}{'acceptance':>11}{'drafts':>8}{'tokens a step':>15}{'gain':>7}{'step ms':>10}{'emulated':>10}")
    for machine in MACHINES:
        for model, batches, compress in MODELS:
            for acceptance in ACCEPTANCES:
                options = ["--machine", machine, "--model", model, "--batches", batches, "--compress", compress, "--json"]
                options += ["--speculate", "ngram", "--acceptance", acceptance]
                planned = answer([arguments.coordinator, "plan", *options, *LENGTHS])["speculation"]
                emulated = [arguments.coordinator, *options, "--device", "emulated:timed", *EMULATED_LENGTHS]
                error = answer(emulated)["timed"]["error"]
                worst = max(worst, abs(error))
                print(
                    f"{machine:20}{model:13}{batches:9}{acceptance:>11}{planned['drafts']:>8}{planned['tokens_per_step']:>15.2f}"
                    f"{planned['gain']:>7.2f}{planned['step_ms']:>10.1f}{error:>+10.2%}",
                    flush=True,
                )
                cell = {"machine": machine, "model": model, "batches": batches, "compress": compress}
                measuring.append(arguments.json, {**cell, **planned, "emulated_error": error})
    print(f"emulated within {GOAL:.0%} of predicted: {'reached' if worst <= GOAL else 'MISSED'}, at most {worst:.2%}")


if __name__ == "__main__":
    main()
