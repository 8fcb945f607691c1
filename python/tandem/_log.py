"""The output while it grows."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Iterator, List, Optional, Tuple


class Log:
    """The whole lines of a file that another process appends to.

    What an earlier run left in it is not told before there is a line more: until then it is not
    known whether those lines answer what is asked now.
    """

    def __init__(self, path: Path) -> None:
        """The file need not be there yet."""
        self._path = path
        self._file: Optional[BinaryIO] = None
        self._read_bytes = 0
        self._kept_bytes = 0
        if path.exists():
            # Behind the last line there may be a piece of one, which is cut when the run begins.
            self._kept_bytes = path.read_bytes().rfind(b"\n") + 1

    def news(self) -> List[Tuple[bytes, bool]]:
        """The lines that were not told yet, each with whether an earlier run wrote it."""
        if self._file is None:
            if not self._path.exists():
                return []
            # Also read to its end when another file takes its place, which is in other order.
            self._file = self._path.open("rb")
        if self._read_bytes < self._kept_bytes:
            self._file.seek(self._kept_bytes)
            if b"\n" not in self._file.read():
                return []
        self._file.seek(self._read_bytes)
        found = self._file.read()
        whole = found[: found.rfind(b"\n") + 1]
        told: List[Tuple[bytes, bool]] = []
        for line in whole.splitlines(keepends=True):
            told.append((line, self._read_bytes < self._kept_bytes))
            self._read_bytes += len(line)
        return told

    def settled(self) -> Iterator[bytes]:
        """All lines of the file that a finished run left."""
        with self._path.open("rb") as file:
            yield from file

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
