"""When a server is ready: when a session can be had there, and not when its port is open."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from ..errors import LaunchFailed, NotReady, OpenEnvError, UsageError

__all__ = ["Alive", "wait_until_ready"]

Alive = Callable[[], str | None]
"""Why the server is gone, to go on with after "the server"; None while it is there."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
# Between two looks at whether the server lives.
GLANCE_S = 0.25
# The server has answered, and what is wrong is for its user to see: a reset that wants arguments, a key with too
# small a scope, every slot taken.
_ANSWERS = {"EXECUTION_ERROR", "VALIDATION_ERROR", "CAPACITY_REACHED"}
# A server without sessions for us: tools only, or for whoever has the key.
_CLOSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}


def wait_until_ready(
    base_url: str,
    timeout_s: float,
    gone: Alive = lambda: None,
    log: Callable[[], str] = lambda: "",
    api_key: str | None = None,
) -> None:
    """Waits until a session can be opened, reset and closed; where the server offers none, until it is healthy.

    Args:
        base_url: `http(s)://host:port`, perhaps with a path.
        timeout_s: Seconds to wait.
        gone: Asked now and then whether the server is still there.
        log: The end of its log, without secrets, for the error.
        api_key: The key it asks for.

    Raises:
        NotReady: Not in time; with what it said last, and the end of its log.
        LaunchFailed: The server is gone; with the end of its log. At once.
        UsageError: `timeout_s` is no time.
    """
    if not timeout_s > 0:
        raise UsageError(f"timeout_s must be more than 0, got {timeout_s!r}")
    probe = _Probe(urlsplit(base_url), time.monotonic() + timeout_s, gone, api_key)
    reason = probe.run()
    if probe.end is not None:
        raise LaunchFailed(f"the server {probe.end} before it was ready{_told(log())}")
    if reason is not None:
        raise NotReady(f"{base_url} was not ready within {timeout_s:g} s (timeout_s): {reason}{_told(log())}")


class _Unready(Exception):
    """Not yet, and why."""


class _Probe:
    """Attempts to have a session, until one succeeds.

    Attributes:
        end: Why the server is gone, if it is.
    """

    def __init__(self, place: SplitResult, deadline: float, gone: Alive, api_key: str | None):
        self.end: str | None = None
        self._place = place
        self._deadline = deadline
        self._gone = gone
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._over = threading.Event()
        self._socket: socket.socket | None = None

    def run(self) -> str | None:
        """Why there was no session in time; None when there was one."""
        self.end = self._gone()
        # Beside the attempts, since what each of them waits for may never come once the server is gone.
        watcher = threading.Thread(target=self._watch, name="openenv-readiness", daemon=True)
        watcher.start()
        try:
            return self._attempts()
        finally:
            self._over.set()
            watcher.join()

    def _attempts(self) -> str | None:
        pause, reason = FIRST_PAUSE_S, "it was not asked"
        while self.end is None and self._left:
            try:
                self._try()
            except TimeoutError as error:
                reason = str(error) or reason
            except (OSError, _Unready, WebSocketException, http.client.HTTPException, ValueError) as error:
                reason = str(error) or type(error).__name__
            else:
                return None
            self._over.wait(min(pause, self._left))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return reason

    def _watch(self) -> None:
        while self.end is None and not self._over.wait(GLANCE_S):
            try:
                self.end = self._gone()
            except OpenEnvError as error:
                self.end = f"cannot be watched any more ({error})"
        if self.end is not None:
            self._over.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _try(self) -> None:
        try:
            conversation = self._connect()
        except InvalidStatus as refusal:
            if refusal.response.status_code not in _CLOSED:
                raise
            self._ask_health()
            return
        with conversation:
            conversation.send('{"type":"reset","data":{}}')
            answer = self._receive(conversation)
            if answer.get("type") != "observation":
                self._judge(answer)
            conversation.send('{"type":"close"}')

    def _connect(self) -> ClientConnection:
        place, secure = self._place, self._place.scheme in {"https", "wss"}
        # With a socket of our own, proxies are not asked.
        end = self._socket = socket.create_connection(self._address, timeout=max(GLANCE_S, min(self._left, 5.0)))
        try:
            return connect(
                f"{'wss' if secure else 'ws'}://{place.netloc}{place.path.rstrip('/')}/ws",
                sock=end,
                ssl=ssl.create_default_context() if secure else None,
                additional_headers=self._headers,
                open_timeout=max(GLANCE_S, self._left),
                close_timeout=0.3,
                ping_interval=None,
                max_size=None,
            )
        except BaseException:
            end.close()
            raise

    @property
    def _address(self) -> tuple[str, int]:
        place = self._place
        return place.hostname or "", place.port or (443 if place.scheme in {"https", "wss"} else 80)

    def _receive(self, conversation: ClientConnection) -> dict[str, Any]:
        try:
            answer = json.loads(conversation.recv(timeout=self._left))
        except TimeoutError:
            raise TimeoutError("it has a session, and its reset did not answer") from None
        if not isinstance(answer, dict):
            raise _Unready(f"it answers reset with {answer!r:.200}")
        return answer

    def _judge(self, answer: dict[str, Any]) -> None:
        data = answer.get("data")
        facts = data if isinstance(data, dict) else {}
        if facts.get("error") == "Forbidden":
            self._ask_health()
        elif facts.get("code") not in _ANSWERS:
            raise _Unready(f"it answers reset with {facts.get('message', answer)!r:.500}")

    def _ask_health(self) -> None:
        kind = http.client.HTTPSConnection if self._place.scheme in {"https", "wss"} else http.client.HTTPConnection
        connection = kind(*self._address, timeout=max(GLANCE_S, min(self._left, 5.0)))
        try:
            connection.request("GET", f"{self._place.path.rstrip('/')}/health", headers=self._headers)
            status = connection.getresponse().status
        finally:
            connection.close()
        if status != HTTPStatus.OK:
            raise _Unready(f"it offers no session, and /health answers {status}")


def _told(log: str) -> str:
    return f"; its log ends with:\n{log}" if log else ""
