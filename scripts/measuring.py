"""What the scripts of `make bench` share: their arguments, and rows of JSON."""

import argparse
import json


def parser(description, *required, rounds=None):
    """A parser with `--coordinator`, more required options, `--rounds` if a number is given, and `--json`."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coordinator", *required):
        found.add_argument(f"--{name}", required=True)
    if rounds is not None:
        found.add_argument("--rounds", type=int, default=rounds)
    found.add_argument("--json", metavar="FILE", help="where rows are appended")
    return found


def append(path, row):
    """Appends a row to a file, if there is one."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
