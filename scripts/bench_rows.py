#!/usr/bin/env python3
"""Prints a row for each report, and appends all of them as one JSON line with commit and machine.

    scripts/bench_rows.py HISTORY.jsonl REPORT.json...
"""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

COLUMNS = [
    "prefill_s",
    "decode_s",
    "decode_tokens_per_s",
    "replayed_s",
    "measured_s",
    "overlap",
    "error",
    "time_outside",
    "memory_of_plan",
]
# What each must not exceed; the other columns have no goal yet.
GOALS = {"error": 0.10, "time_outside": 0.05, "memory_of_plan": 1.10}


def cpu_name():
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def row(report):
    """The columns of one report; None where the run was too short for a figure."""
    values = {name: report.get(name) for name in COLUMNS}
    replayed = report.get("replayed") or {}
    values["replayed_s"] = replayed.get("simulated_s")
    values["measured_s"] = replayed.get("measured_s")
    if values["replayed_s"] and values["measured_s"]:
        values["error"] = abs(values["replayed_s"] / values["measured_s"] - 1)
    budget = report.get("budget_bytes") or {}
    planned = sum(budget.get(name, 0) for name in ("weights", "kv", "device"))
    used = (report.get("peak_pss_bytes") or {}).get("sum")
    values["memory_of_plan"] = used / planned if planned and used else None
    return values


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    history, *paths = map(Path, sys.argv[1:])
    rows = {path.stem: row(json.loads(path.read_text(encoding="utf-8"))) for path in paths}
    print(f"{'':12}" + "".join(f"{name:>21}" for name in COLUMNS), flush=True)
    for name, values in rows.items():
        cells = ("-" if values[c] is None else f"{values[c]:.4g}" for c in COLUMNS)
        print(f"{name:12}" + "".join(f"{cell:>21}" for cell in cells))
    print(f"{'goal':12}" + "".join(f"{GOALS[c]:>20.3g}<" if c in GOALS else f"{'':>21}" for c in COLUMNS))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip() or None,
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count()},
        "rows": rows,
    }
    with open(history, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
