"""What drivers have in common. Runs in virtual environments without pytest: ours and the released peer's.

A driver is a file of functions marked with `check`, each of which takes the server's URL and asserts.
`main` runs them all and prints one JSON object as its last line: for each check `null`, or the traceback.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CHECKS: dict[str, Callable[[str], Any]] = {}


def check(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Marks what every OpenEnv system does."""
    CHECKS[function.__name__] = function
    return function


def check_ours(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Marks what only this distribution promises."""
    if "--peer" not in sys.argv:
        CHECKS[function.__name__] = function
    return function


class Answer:
    """What a route answered."""

    def __init__(self, status: int, headers: Any, body: bytes):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:500]!r}"


def http(method: str, url: str, body: Any = None, **headers: str) -> Answer:
    """One request over a connection of its own."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **named}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.headers, refused.read())


@contextmanager
def fails(*words: str) -> Iterator[None]:
    """What is inside raises an error whose message has all these words."""
    raised: Exception | None = None
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - which class it is differs between the systems
        raised = error
    assert raised is not None, "nothing was raised"
    missing = [word for word in words if word not in str(raised)]
    assert not missing, f"{missing} not in {type(raised).__name__}: {raised}"


def main() -> None:
    """Runs every check against the URL that is the first argument."""
    url = sys.argv[1]
    outcome: dict[str, str | None] = {}
    for name, function in CHECKS.items():
        try:
            if inspect.iscoroutinefunction(function):
                asyncio.run(asyncio.wait_for(function(url), 60))
            else:
                function(url)
            outcome[name] = None
        except BaseException:  # noqa: BLE001 - the next check runs all the same
            outcome[name] = traceback.format_exc()
    sys.stdout.write("\n" + json.dumps(outcome))
    sys.stdout.flush()


def websocket(url: str, path: str = "/ws", **options: Any) -> Any:
    """A raw connection, to look at frames."""
    from websockets.sync.client import connect

    return connect(url.replace("http", "ws", 1) + path, proxy=None, **options)


def ask(socket: Any, frame: Any) -> Any:
    """Sends one frame and waits for the next one that comes."""
    socket.send(frame if isinstance(frame, str) else json.dumps(frame))
    return json.loads(socket.recv(timeout=30))
