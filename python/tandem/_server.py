"""A server as a context manager."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Collection, Optional, Type

from ._errors import Error
from ._flags import flags
from ._process import Process

LOOK_EVERY_S = 0.1
"""Between two looks at a server that starts."""

DRAIN_S = 30
"""How long answers may go on after a server is told to end, unless ``drain_timeout`` says."""

ANNOUNCED = " at http://"
"""What the line has in which a server says where it listens."""

OURS = ("quiet", "stop_at_eof", "model")
"""Options that a server is given here."""


class Server:
    """A server that runs within a ``with`` statement; see :func:`serve`."""

    url: str
    """Where it answers, without a path: ``http://127.0.0.1:40123``."""

    def __init__(
        self,
        model: str,
        *,
        progress: bool = False,
        start_timeout_s: float = 3600,
        cpus: Optional[Collection[int]] = None,
        **options: object,
    ) -> None:
        """Prepares a server; the arguments are those of :func:`serve`."""
        options = {"port": 0, **options}
        drain_s = options.get("drain_timeout")
        self._stop_s = 10.0 + float(str(DRAIN_S if drain_s is None else drain_s))
        self._arguments = ["serve", f"--model={model}", *flags(options, OURS), "--stop-at-eof"]
        self._shows = progress
        self._start_timeout_s = start_timeout_s
        self._cpus = cpus
        self._process: Optional[Process] = None

    def __enter__(self) -> Server:
        """Starts it, and waits until it answers.

        :raises Error: it ended before it did, or did not within ``start_timeout_s``.
        """
        self._process = Process(self._arguments, shows=self._shows, cpus=self._cpus)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Ends it."""
        self.stop()

    @property
    def pid(self) -> Optional[int]:
        """Its process id; None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.exit_code() is None

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end: whether it has ended after so long."""
        return self._process is None or self._process.wait(timeout_s) is not None

    def failure(self) -> Optional[Error]:
        """Why it has ended: its sentence. None while it is alive, and before it was started."""
        if self._process is None or self._process.exit_code() is None:
            return None
        return self._process.failure()

    def stop(self) -> None:
        """Ends it where it runs: answers that have begun go on for ``drain_timeout`` seconds."""
        if self._process is None:
            return
        self._process.signal(signal.SIGTERM)
        try:
            if self._process.wait(self._stop_s) is None:
                self._process.kill()
        except KeyboardInterrupt:
            self._process.kill()
            raise
        finally:
            self._process.close()

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.close()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        until = time.monotonic() + self._start_timeout_s
        while time.monotonic() < until:
            line = self._process.wait_for(ANNOUNCED, LOOK_EVERY_S)
            if line is not None:
                self.url = line.rpartition(" at ")[2].strip()
                if _is_healthy(self.url):
                    return
                time.sleep(LOOK_EVERY_S)
            if self._process.exit_code() is not None:
                raise self._process.failure()
        raise Error(f"The server did not answer within {self._start_timeout_s:g} s.")


def _is_healthy(url: str) -> bool:
    try:
        # No proxy: it is this machine's own.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def serve(
    model: str,
    *,
    progress: bool = False,
    start_timeout_s: float = 3600,
    cpus: Optional[Collection[int]] = None,
    **options: object,
) -> Server:
    """A server of OpenAI's API, at a free port of 127.0.0.1 unless ``host`` and ``port`` say.

    ::

        with tandem.serve("./SmolLM2", slots=8) as server:
            client = OpenAI(base_url=server.url + "/v1", api_key="none")

    :param model: a directory, a .gguf file, or org/name in the Hugging Face cache.
    :param progress: whether what it says goes to stderr.
    :param start_timeout_s: how long it may take until it answers.
    :param cpus: the CPUs that it may use; None: those of this process.
    :param options: options of ``coordinator serve``: ``max_queue=64`` is ``--max-queue 64``.
    :raises TypeError: an option is one that this function gives.
    """
    return Server(model, progress=progress, start_timeout_s=start_timeout_s, cpus=cpus, **options)
