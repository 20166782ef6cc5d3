"""Wait until a server accepts a session, not only until its port is open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from .._asyncio import first_of
from .._backoff import Backoff
from .._http import bearer
from ..errors import LaunchFailed, NotReady, OpenEnvError, UsageError
from .redaction import with_tail

Ask = Callable[[], Awaitable[str | None]]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.25
# Seconds between two checks that the server lives.
GLANCE_S = 0.25
# Consecutive failures of that check, at a busy place, that end the wait.
MISSES = 4
# Seconds for the first attempt: it may hang where a new one would succeed. After a timeout the next attempt has twice
# as long, since a reset may be slow.
ATTEMPT_S = 10.0
# Errors of a server that works. The caller will see them later: reset needs arguments, the scope of the key is too
# small.
_ANSWERS = {"EXECUTION_ERROR", "VALIDATION_ERROR"}
# The key may open no session; or a client must open the whole batch.
_NOT_FOR_US = {"Forbidden", "UsageError"}
# Every slot is taken: by other users or by calls that hang. `/ready` shows which.
_FULL = "CAPACITY_REACHED"
# Maximum of characters quoted from an answer, and of seconds to read it.
MOST_SAID = 1000
PAUSE_S = 1.0
# Status codes of a server without sessions for us: it has tools only, or needs a key.
_CLOSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}


async def _nothing() -> str | None:
    return None


async def until_ready(
    base_url: str,
    timeout_s: float,
    gone: Ask = _nothing,
    log: Ask = _nothing,
    api_key: str | None = None,
    trouble: Callable[[], str | None] = lambda: None,
) -> None:
    """Waits until a session can be opened, reset and closed; if the server offers no sessions, until it is healthy.

    Args:
        base_url: `http(s)://host:port`, perhaps with a path.
        timeout_s: Seconds to wait.
        gone: Called at intervals. Returns why the server is gone, phrased to follow "the server", or None.
        log: The end of its log, with secrets masked, for the error.
        api_key: The key that it asks for.
        trouble: Returns why connections to it fail, if its provider knows more than the connection shows.

    Raises:
        NotReady: Not in time; with its last answer, and the end of its log.
        LaunchFailed: The server is gone; with the end of its log. Raised at once.
        UsageError: `timeout_s` is invalid.
    """
    if not timeout_s > 0:
        raise UsageError(f"timeout_s must be more than 0, got {timeout_s!r}")
    probe = _Probe(urlsplit(base_url), api_key)
    attempts = asyncio.ensure_future(probe.run())
    watch = asyncio.ensure_future(_watch(gone))
    try:
        async with asyncio.timeout(timeout_s):
            ended = await first_of(attempts, watch)
    except TimeoutError:
        limit, reason = f"{round(timeout_s, 2):g} s (timeout_s)", trouble() or probe.reason
        raise NotReady(with_tail(f"{base_url} was not ready within {limit}: {reason}", await log() or "")) from None
    if attempts not in ended:
        raise LaunchFailed(with_tail(f"the server {watch.result()} before it was ready", await log() or ""))
    attempts.result()


async def _watch(gone: Ask) -> str:
    misses = 0
    while True:
        try:
            end, misses = await gone(), 0
        except OpenEnvError as error:
            misses += 1
            passing = error.retryable and misses < MISSES
            end = None if passing else f"cannot be watched any more ({error})"
        if end is not None:
            return end
        await asyncio.sleep(GLANCE_S)


class _Unready(Exception):
    """An attempt has failed; the message is the reason."""


class _Probe:
    """Tries to open and reset a session until it succeeds."""

    def __init__(self, place: SplitResult, api_key: str | None):
        self._failure: str | None = None
        self._waits_for = "it was not contacted"
        self._began = 0.0
        self._place = place
        self._tls = ssl.create_default_context() if place.scheme in {"https", "wss"} else None
        self._headers = bearer(api_key)

    @property
    def reason(self) -> str:
        """Why the server is not ready: the failure of the last attempt, or what a long one waits for."""
        waited = asyncio.get_running_loop().time() - self._began
        return self._waits_for if self._failure is None or waited > LONGEST_PAUSE_S else self._failure

    async def run(self) -> None:
        backoff, limit = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), ATTEMPT_S
        while True:
            self._began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(limit):
                    await self._try()
            except TimeoutError:
                self._failure = self._waits_for
                limit *= 2
            except (OSError, EOFError, _Unready, WebSocketException, ValueError) as error:
                self._failure = str(error) or type(error).__name__
            else:
                return
            await asyncio.sleep(backoff.grow())

    async def _try(self) -> None:
        self._waits_for = "it did not take a connection"
        place = self._place
        try:
            conversation = await connect(
                f"{'ws' if self._tls is None else 'wss'}://{place.netloc}{place.path.rstrip('/')}/ws",
                ssl=self._tls,
                additional_headers=self._headers,
                proxy=None,
                open_timeout=None,
                close_timeout=0.3,
                ping_interval=None,
                max_size=None,
            )
        except InvalidStatus as refusal:
            if refusal.response.status_code not in _CLOSED:
                raise
            await self._ask_health()
            return
        try:
            self._waits_for = "it has a session, and its reset did not answer"
            await conversation.send('{"type":"reset","data":{}}')
            answer = json.loads(await conversation.recv())
            if not isinstance(answer, dict):
                raise _Unready(f"it answers reset with {answer!r:.200}")
            if answer.get("type") != "observation":
                data = answer.get("data")
                facts = data if isinstance(data, dict) else {}
                if facts.get("error") in _NOT_FOR_US:
                    await self._ask_health()
                    return
                if facts.get("code") == _FULL:
                    await self._ask_health("every session is taken")
                elif facts.get("code") not in _ANSWERS:
                    raise _Unready(f"it answers reset with {facts.get('message', answer)!r:.500}")
            await conversation.send('{"type":"close"}')
            await conversation.close()
        finally:
            conversation.transport.abort()  # at once, also after an error: waiting for a close would gain nothing

    async def _ask_health(self, why: str = "it offers no session") -> None:
        """Asks `/ready`, or `/health` of a server without that route, such as one of the released package."""
        for path in ("/ready", "/health"):
            self._waits_for = f"{why}, and {path} does not answer"
            status, body = await self._get(path)
            if status == HTTPStatus.OK:
                return
            if path == "/health" or status not in _CLOSED:
                said = f": {body.decode(errors='replace')}" if body else ""
                raise _Unready(f"{why}, and {path} answers {status}{said}"[:MOST_SAID])

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a route's response; a long body is cut."""
        place = self._place
        port = place.port or (80 if self._tls is None else 443)
        reader, writer = await asyncio.open_connection(place.hostname, port, ssl=self._tls)
        try:
            head = {"Host": place.netloc, "Connection": "close", **self._headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            writer.write(f"GET {place.path.rstrip('/')}{path} HTTP/1.1\r\n{lines}\r\n".encode())
            status = (await reader.readline()).split()
            rest = b"" if status[1:2] == [b"200"] else await _rest(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if len(status) < 2 or not status[0].startswith(b"HTTP/") or not status[1].isdigit():
            raise _Unready("the answer is not HTTP")
        return int(status[1]), rest.partition(b"\r\n\r\n")[2]


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Reads until the server closes the connection or pauses."""
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(PAUSE_S):
            while len(said) < MOST_SAID and (more := await reader.read(MOST_SAID)):
                said += more
    return said
