#!/usr/bin/env python3
"""Writes the tables of docs/bench/*.md from docs/bench/*.jsonl.

    scripts/bench_tables.py            rewrites the tables
    scripts/bench_tables.py --check    fails if a page differs

A table stands between <!-- table: NAME --> and <!-- end -->; docs/bench/NAME.jsonl has an object for each row (`row`, `values`
by column) or, where machines are columns, for each cell (`case`, `machine`, `value`). Objects also say machine, unit, number
of samples and command. Numbers are printed with the digits that they are written with; those below the `least` of their
column, or of their object, are bold."""

import json
import re
import sys
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "bench"
# What stands above the first column.
HEADS = {
    "linears": "rows of x",
    "gpu-linears": "weights; rows of x above",
    "gpu-attention": "attention",
    "four-bit": "rows of x",
    "onednn": "rows of x",
    "attention": "share of DRAM read, or times as fast",
    "llama": "model and what is timed",
    "serve": "all requests at once",
    "policies": "policy",
    "predictions": "policy",
    "timed": "table",
    "alike": "prompts, tokens in common",
    "following": "batches",
    "kills": "what is done",
    "nvme": "what is measured",
    "nvme-throughput": "weights, and where they are",
    "nvme-batches": "largest batch 1xB under `--dram`",
}
TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def objects(name):
    """Numbers keep their digits: 1.50 is not 1.5."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line, parse_float=Decimal) for line in lines]
    wrong = [line for line in found if line.get("table") != name]
    if wrong:
        sys.exit(f"docs/bench/{name}.jsonl: {wrong[0]} is no row of this table")
    return found


def cell(value, least=None):
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(cell(one, least) for one in value)
    is_number = isinstance(value, (int, Decimal))
    missed = is_number and isinstance(least, (int, Decimal)) and value < least
    return f"**{value}**" if missed else str(value)


def by_rows(lines):
    columns = list(dict.fromkeys(column for line in lines for column in line["values"]))
    least = next((line["values"] for line in lines if line["row"] == "least"), {})
    # Of a row above, the least and the greatest of what it is the mean of.
    is_range = lambda line: line["row"].startswith("least and greatest")
    minima = lambda line: {} if is_range(line) else least
    rows = [[line["row"], *(cell(line["values"].get(c), minima(line).get(c)) for c in columns)] for line in lines]
    # Where a table holds minima its cells are plain numbers, which do not say how many samples they are of.
    if least:
        columns = [*columns, "n"]
        rows = [[*row, cell(line.get("n"))] for row, line in zip(rows, lines)]
    return columns, rows


def by_machines(lines):
    machines = list(dict.fromkeys(line["machine"] for line in lines))
    rows = []
    for case in dict.fromkeys(line["case"] for line in lines):
        mine = {line["machine"]: line for line in lines if line["case"] == case}
        least = next((line["least"] for line in mine.values() if "least" in line), None)
        rows.append([case, *(of_machine(mine.get(machine)) for machine in machines), cell(least)])
    return [*machines, "least"], rows


def of_machine(line):
    if line is None:
        return ""
    text = cell(line["value"], line.get("least"))
    if "ours" not in line and "range" not in line:
        return text
    notes = []
    if "range" in line:
        notes.append("{} to {}".format(*line["range"]))
    if "n" in line:
        notes.append(f"n {line['n']}")
    if notes:
        text += f" ({'; '.join(notes)})"
    return f"{text}: {line['ours']}, {line['llama_cpp']}" if "ours" in line else text


def table(name):
    lines = objects(name)
    columns, rows = (by_machines if "case" in lines[0] else by_rows)(lines)
    head = [HEADS.get(name, ""), *columns]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    names, wrong = [], []
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        names += [found.group(2) for found in TABLE.finditer(text)]
        made = TABLE.sub(lambda found: found.group(1) + table(found.group(2)) + found.group(4), text)
        if made != text and check:
            wrong.append(page.name)
        elif made != text:
            page.write_text(made, encoding="utf-8")
    left = sorted({path.stem for path in FOLDER.glob("*.jsonl")} - set(names))
    if left:
        sys.exit(f"no page of docs/bench has a table for {', '.join(left)}")
    if wrong:
        sys.exit(f"tables differ from docs/bench/*.jsonl in {', '.join(wrong)}: run scripts/bench_tables.py")
    print(f"{len(names)} tables {'agree with' if check else 'written from'} docs/bench/*.jsonl")


if __name__ == "__main__":
    main()
