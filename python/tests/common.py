"""What the tests share."""

import os
import time
from pathlib import Path
from typing import Callable, List

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures"

MODEL = str(FIXTURES / "llama")
"""A model of 2 layers with random weights, a tokenizer and a chat template."""

SLOW = {"device": "emulated:link=1MB/s", "split": "scores:norm1", "batches": "1x4"}
"""A link so slow that each step takes a tenth of a second."""

WATCHDOG_S = 60.0


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Waits until something holds that must come to hold."""
    until = time.monotonic() + WATCHDOG_S
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def workers_of(pid: int) -> List[int]:
    """The worker processes of a coordinator."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid and b"worker" in words:
            found.append(int(folder.name))
    return found


def environment() -> "dict[str, str]":
    """For a Python that imports the package as it lies here."""
    package = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": package}
