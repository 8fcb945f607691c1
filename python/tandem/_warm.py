"""A server that is kept warm for many requests, and started again where it dies."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._errors import Error
from ._http import Client, Lost, Refused
from ._server import Server

Ask = Tuple[str, Dict[str, Any]]
"""A path, and the body that is posted to it."""

IN_FLIGHT = 128
"""Requests that are sent at a time: more than a server has slots, so that none is ever empty."""

WAIT_S = 1.0
"""Before a request is sent again to a server that has no room, and does not say how long."""

ENDING_S = 2.0
"""How long after its connections a server may end."""

ROOM = (429, 503)
"""Statuses that say: not now."""


class WarmServer:
    """Answers lists of requests through a server of its own. One that dies is started again, and
    what it had not answered is asked again: each request has one answer in the end."""

    def __init__(self, model: str, *, restarts: int = 3, **options: Any) -> None:
        """Starts the server.

        :param restarts: how often it may die with no answer in between.
        :param options: those of :func:`tandem.serve`.
        :raises Error: it cannot be started.
        """
        self._model, self._options = model, options
        self._restarts = restarts
        self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="tandem request")
        self._server = self._start()
        self._client = Client(self._server.url)

    @property
    def pid(self) -> Optional[int]:
        """Process id of the server that runs now."""
        return self._server.pid

    def answers(self, asks: Sequence[Ask]) -> List[Union[Dict[str, Any], Refused]]:
        """The answer to each request, in their order: what it is, or why there is none.

        :raises Error: the server died too often; its sentence.
        """
        found: Dict[int, Union[Dict[str, Any], Refused]] = {}
        left = list(range(len(asks)))
        losses = 0
        while left:
            asked = self._pool.map(lambda index: self._answer(asks[index]), left)
            answered = {index: one for index, one in zip(left, asked) if one is not None}
            found.update(answered)
            left = [index for index in left if index not in found]
            if not left:
                break
            losses = 1 if answered else losses + 1
            self._start_again(losses)
        return [found[index] for index in range(len(asks))]

    def model(self) -> Dict[str, Any]:
        """What the server says of its model.

        :raises Error: it is no longer there.
        """
        try:
            models: List[Dict[str, Any]] = self._client.ask("/v1/models")["data"]
        except Lost:
            raise self._failure() from None
        return models[0]

    def close(self) -> None:
        """Ends the server."""
        self._pool.shutdown(wait=True)
        self._client.close()
        self._server.stop()

    def _start(self) -> Server:
        server = Server(self._model, **self._options)
        return server.__enter__()

    def _answer(self, ask: Ask) -> Optional[Union[Dict[str, Any], Refused]]:
        """One answer; None where the server is no longer there."""
        path, body = ask
        while True:
            try:
                return self._client.ask(path, body)
            except Lost:
                return None
            except Refused as refused:
                if refused.status not in ROOM:
                    return refused
                time.sleep(refused.retry_after_s or WAIT_S)

    def _failure(self) -> Error:
        """Why the server does not answer."""
        return self._server.failure() or Error("The server runs, and does not answer.")

    def _start_again(self, losses: int) -> None:
        """Has a server that answers, after the one there was did not: another one where that one
        has ended, or too often did not answer."""
        has_ended = self._server.wait(ENDING_S)
        if not has_ended and losses <= self._restarts:
            return
        self._server.kill()
        failure = self._failure()
        if losses > self._restarts:
            raise failure
        try:
            self._server = self._start()
        except Error as error:
            raise error from failure
        self._client.close()
        self._client = Client(self._server.url)
