"""The program as a process: what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import Collection, Deque, List, Optional, Sequence

from ._binary import NAME, binary
from ._errors import Error

LINES_KEPT = 400
"""Lines of stderr that are kept for what may have to be said of the end."""

BEGINNINGS = (f"{NAME}: ", "error: ")
"""How the program's sentences on what went wrong begin, and those on wrong options."""


class Process:
    """The program with arguments. It ends when this process does, however that ends: it is told
    to stop once its stdin is closed. A Ctrl-C at a terminal does not reach it by itself."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        shows: bool = False,
        cpus: Optional[Collection[int]] = None,
    ) -> None:
        """Starts it.

        :param shows: its stderr goes to this process's stderr as well.
        :param cpus: the CPUs that it may use; None: those of this process.
        :raises Error: it cannot be started.
        """
        self._lines: Deque[str] = deque(maxlen=LINES_KEPT)
        self._shows = shows
        self._news = threading.Condition()
        path = binary()
        before = os.sched_getaffinity(0)
        try:
            if cpus is not None:
                # Of this thread alone, which hands it on to the process that it starts.
                os.sched_setaffinity(0, cpus)
            self._child = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise Error(f"The program cannot be started: {error}.") from error
        finally:
            if cpus is not None:
                os.sched_setaffinity(0, before)
        self._reader = threading.Thread(target=self._read, name="tandem stderr", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def exit_code(self) -> Optional[int]:
        """How it ended; below 0 the signal that killed it; None while it runs."""
        return self._child.poll()

    def signal(self, number: int) -> None:
        """Sends a signal; one that has ended gets none."""
        self._child.send_signal(number)

    def wait(self, timeout_s: Optional[float] = None) -> Optional[int]:
        """Waits for its end: how it ended, or None where it still runs after so long."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def wait_for(self, text: str, timeout_s: float) -> Optional[str]:
        """Waits until it has said a line with ``text``: the line, or None after so long."""
        with self._news:
            self._news.wait_for(lambda: self._line(text) is not None, timeout_s)
            return self._line(text)

    def kill(self) -> None:
        """Ends it at once. Its workers end with it."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Lets go of an ended process."""
        self._reader.join()
        for stream in (self._child.stdin, self._child.stderr):
            if stream is not None:
                stream.close()

    def failure(self, folder: Optional[str] = None) -> Error:
        """What to raise of an end that was none: its sentence, or how it ended."""
        code = self.exit_code()
        if code is not None:
            # All that it said is there once its end of the pipe is closed.
            self._reader.join(timeout=5)
        sentence = self._sentence()
        if sentence is None and code is not None and code < 0:
            sentence = f"The program was killed by {_signal_name(-code)}."
        if sentence is None:
            sentence = f"The program ended with code {code}" + self._last_words()
        return Error(sentence, code, folder)

    def _read(self) -> None:
        assert self._child.stderr is not None
        for raw in self._child.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
            if self._shows:
                print(line, file=sys.stderr, flush=True)

    def _line(self, text: str) -> Optional[str]:
        return next((line for line in self._lines if text in line), None)

    def _sentence(self) -> Optional[str]:
        """The last sentence on what went wrong, with the lines that belong to it."""
        lines = list(self._lines)
        for index in range(len(lines) - 1, -1, -1):
            for beginning in BEGINNINGS:
                if lines[index].startswith(beginning):
                    return _joined([lines[index][len(beginning) :], *lines[index + 1 :]])
        return None

    def _last_words(self) -> str:
        last = next((line for line in reversed(self._lines) if line.strip()), None)
        return "." if last is None else f". The last line that it printed: {last}"


def _joined(lines: List[str]) -> str:
    return "\n".join(lines).strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
