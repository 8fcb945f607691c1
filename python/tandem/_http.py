"""Requests to a server on this machine."""

from __future__ import annotations

import http.client
import json
import os
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit


class Lost(Exception):
    """There was no answer: nobody listens, or the connection ended."""


class Refused(Exception):
    """An answer that is an error."""

    status: int
    retry_after_s: Optional[float]

    def __init__(self, status: int, message: str, retry_after_s: Optional[float]) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class Client:
    """Asks one server. Each thread has a connection of its own, which stays open."""

    def __init__(self, url: str, timeout_s: Optional[float] = None) -> None:
        """A client of the server at ``url``; None: it waits for an answer as long as it takes."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout_s = timeout_s
        self._threads = threading.local()
        self._connections: List[http.client.HTTPConnection] = []
        self._headers = {"Content-Type": "application/json"}
        key = os.environ.get("TANDEM_API_KEY")
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def ask(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """The answer to ``body``, or of a path that is asked without one.

        :raises Lost: there is none.
        :raises Refused: it is an error.
        """
        data = None if body is None else json.dumps(body).encode()
        # A server closes connections on which nothing was said for long: one that was open already
        # says nothing of the server.
        was_open = getattr(self._threads, "connection", None) is not None
        try:
            response, answer = self._exchange(path, data)
        except Lost:
            if not was_open:
                raise
            response, answer = self._exchange(path, data)
        if response.status != 200:
            after = response.headers.get("Retry-After")
            message = answer.get("error", {}).get("message", f"status {response.status}")
            raise Refused(response.status, message, None if after is None else float(after))
        return answer

    def _exchange(
        self, path: str, data: Optional[bytes]
    ) -> Tuple[http.client.HTTPResponse, Dict[str, Any]]:
        try:
            connection = self._connection()
            connection.request("GET" if data is None else "POST", path, data, self._headers)
            response = connection.getresponse()
            return response, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop()
            raise Lost(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Closes all connections. Nobody asks meanwhile."""
        for connection in self._connections:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        connection: Optional[http.client.HTTPConnection]
        connection = getattr(self._threads, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            self._threads.connection = connection
            # Threads append at once: a list does that as a whole.
            self._connections.append(connection)
        return connection

    def _drop(self) -> None:
        """Closes this thread's connection."""
        connection = self._connection()
        connection.close()
        self._connections.remove(connection)
        self._threads.connection = None
