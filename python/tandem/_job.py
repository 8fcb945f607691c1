"""The program on a file of lines, and its answers to them as they are finished."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Generic,
    Iterator,
    Optional,
    Protocol,
    Sequence,
    Set,
    Type,
    TypeVar,
    Union,
)

from ._errors import Error
from ._log import Log
from ._process import Process

Progress = Union[bool, Callable[[int, int], None], None]
"""True: what the program says of its progress goes to stderr. A function: it is called with how
many prompts are answered, and how many there are, at each answer."""

LOOK_EVERY_S = 0.05
"""Between two looks at the output."""

OURS = ("input", "output", "resume", "force", "quiet", "stop_at_eof", "model")
"""Options that a job gives the program itself."""

FINISHED = (0, 3)
"""Exit codes of a job that was run to its end: all answered, or some with errors."""


class Told(Protocol):
    """What is told of a line."""

    @property
    def index(self) -> int:
        """The line's place in the input, from 0."""

    @property
    def error(self) -> Optional[str]:
        """Why it is not what was asked for."""


T = TypeVar("T", bound=Told)

J = TypeVar("J", bound="Job[Any]")


class Job(Generic[T]):
    """A file of lines that the program answers while its answers are read.

    What an earlier run left in the same folder is told first, and nothing is told twice.
    """

    folder: Path
    """Where ``input.jsonl`` and ``output.jsonl`` are."""

    def __init__(
        self,
        arguments: Sequence[str],
        lines: bytes,
        total: int,
        read: Callable[[Dict[str, Any]], Optional[T]],
        *,
        folder: Union[str, Path, None],
        progress: Progress,
        cpus: Optional[Collection[int]],
    ) -> None:
        """Prepares a job; nothing runs before it is entered with ``with``.

        :param arguments: the program's, without those on the files.
        :param lines: the input, ``total`` lines.
        :param read: what a line of the output tells; None: nothing yet.
        :param folder: where the files are kept; None: in a private folder.
        """
        self._arguments = list(arguments)
        self._input, self._total, self._read = lines, total, read
        self._named = folder is not None
        self._wanted = folder
        self._progress = progress
        self._cpus = cpus
        self._process: Optional[Process] = None
        self._log: Optional[Log] = None
        self._answered: Set[int] = set()
        self._was_stopped = False

    @property
    def total(self) -> int:
        """How many lines there are."""
        return self._total

    @property
    def answered(self) -> int:
        """How many answers were told, errors included."""
        return len(self._answered)

    @property
    def is_running(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.exit_code() is None

    @property
    def pid(self) -> Optional[int]:
        """The program's process id; None before it was started."""
        return None if self._process is None else self._process.pid

    def __enter__(self: J) -> J:
        """Starts the program.

        :raises Error: it is missing, or the folder holds another batch.
        """
        self.folder = self._make_folder()
        source, output = self.folder / "input.jsonl", self.folder / "output.jsonl"
        if not source.exists():
            source.write_bytes(self._input)
        elif source.read_bytes() != self._input:
            raise Error(
                f"{self.folder} holds a batch of other prompts. Give another folder, or remove it."
            )
        self._log = Log(output)
        if not self._total:
            return self
        arguments = [*self._arguments, f"--input={source}", f"--output={output}", "--stop-at-eof"]
        arguments.append("--resume")
        try:
            self._process = Process(arguments, shows=self._progress is True, cpus=self._cpus)
        except BaseException:
            # __exit__ is not called where this raises.
            if not self._named:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Ends the program where it still runs, as Ctrl-C would: what is finished is kept."""
        self.stop()
        if self._log is not None:
            self._log.close()
        # Whoever leaves early by themselves wants no more; whoever is made to may want the rest.
        was_made_to = kind is not None and kind is not GeneratorExit
        if was_made_to and self._holds_answers():
            if kind is KeyboardInterrupt:
                print(f"tandem: {self._how_to_go_on()}", file=sys.stderr, flush=True)
        elif not self._named:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __iter__(self) -> Iterator[T]:
        """The answers that were not told yet, as they are finished.

        :raises Error: the program could not go on. What was finished is kept in ``folder``.
        """
        if self._log is None:
            name = type(self).__name__
            raise RuntimeError(f"it runs within a with statement: with tandem.{name}(...) as job")
        if self._process is None:
            return
        while True:
            code = self._process.exit_code()
            for line, is_old in self._log.news():
                yield from self._told(json.loads(line), is_old)
            if code is not None:
                break
            time.sleep(LOOK_EVERY_S)
        if self._was_stopped:
            return
        if code not in FINISHED:
            raise self._failure()
        if self.answered < self.total:
            # What an earlier run could not answer, and this one neither.
            for line in self._log.settled():
                yield from self._told(json.loads(line), False)

    def stop(self) -> None:
        """Ends the program where it still runs, as Ctrl-C would: answers that are finished are
        written, and may still be read. A second Ctrl-C meanwhile ends it at once."""
        process = self._process
        if process is None:
            return
        if process.exit_code() is None:
            self._was_stopped = True
            process.signal(signal.SIGINT)
            try:
                process.wait()
            except KeyboardInterrupt:
                process.kill()
        process.close()

    def _make_folder(self) -> Path:
        if self._wanted is None:
            return Path(tempfile.mkdtemp(prefix="tandem-"))
        folder = Path(self._wanted)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _told(self, line: Dict[str, Any], is_old: bool) -> Iterator[T]:
        answer = self._read(line)
        # An answer with an error is tried again by a run that goes on.
        if answer is None or answer.index in self._answered or (is_old and answer.error):
            return
        self._answered.add(answer.index)
        if callable(self._progress):
            self._progress(self.answered, self.total)
        yield answer

    def _holds_answers(self) -> bool:
        """Whether there is what a later call could go on from."""
        output = self.folder / "output.jsonl"
        return output.exists() and output.stat().st_size > 0

    def _how_to_go_on(self) -> str:
        kept = f"{self.answered} of {self.total} answers were read; all that are finished are in"
        return f'{kept} {self.folder}, and the same call with folder="{self.folder}" goes on'

    def _failure(self) -> Error:
        assert self._process is not None
        folder = str(self.folder) if self._holds_answers() else None
        if self._process.exit_code() == 130:
            return Error(f"The batch was interrupted: {self._how_to_go_on()}.", 130, folder)
        return self._process.failure(folder)
