"""When a server counts as ready, against servers that say one thing or another."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from openenv import create_app
from openenv.errors import LaunchFailed, NotReady, ProviderBusy, ProviderFailed, UsageError
from openenv.providers.readiness import until_ready

from ..asynchronous import until
from ..batched.environments import Counters
from ..client.environments import ThreadCounter, app_of
from ..client.peers import Peer, Place, observation, serving
from ..server.wires import served

SHORT_S = 0.3
# What an attempt meets whose time is over.
CUT = (asyncio.IncompleteReadError, ConnectionError)


async def wait(place: Place, timeout_s: float = 5.0, **options: Any) -> None:
    await until_ready(place.url, timeout_s, **options)


async def unready(place: Place, reason: str, **options: Any) -> str:
    """What is said of one that is not ready in time: that, once there was time enough for an attempt."""
    for timeout_s in (SHORT_S, 3.0, 12.0):
        with pytest.raises(NotReady, match=rf"within {timeout_s:g} s \(timeout_s\): ") as caught:
            await wait(place, timeout_s, **options)
        if re.search(reason, caught.value.message):
            break
    return caught.value.message


def saying(value: Any) -> Callable[[], Awaitable[Any]]:
    """An answer of a provider."""

    async def say() -> Any:
        return value() if callable(value) else value

    return say


def error(code: str, **facts: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": "for a reason", "code": code, **facts}}


def answering(*replies: Any) -> Callable[[Peer], Awaitable[None]]:
    """Answers reset with one after the other, one a connection; the last stays."""
    left = list(replies)

    async def behave(peer: Peer) -> None:
        try:
            await peer.accept()
            asked = await peer.message()
        except CUT:  # before it had asked
            return
        assert asked == {"type": "reset", "data": {}}
        peer.reply(left.pop(0) if len(left) > 1 else left[0])
        await peer.ended()

    return behave


def refusing(status: str, health: str) -> Callable[[Peer], Awaitable[None]]:
    """Offers no WebSocket."""

    async def behave(peer: Peer) -> None:
        with suppress(*CUT):
            await peer.read_request()
            asked = peer.request.split()[1].decode()
            answer = health if asked.endswith("/health") else status
            peer.writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
            await peer.writer.drain()

    return behave


async def test_a_session_that_is_opened_reset_and_closed() -> None:
    said: list[Any] = []

    async def behave(peer: Peer) -> None:
        await peer.accept()
        said.append(await peer.message())
        peer.reply(observation())
        said.append(await peer.message())
        await peer.ended()

    async with serving(behave) as place:
        await wait(place)
    assert [message["type"] for message in said] == ["reset", "close"]


async def test_a_server_of_ours() -> None:
    app = app_of(ThreadCounter, sessions=1)
    with served(app, ws="openenv.server.transports.uvicorn:FastPath") as address:
        for _ in range(3):
            await until_ready(f"http://{address}/", 5.0)
        await until(lambda: app.state.openenv.active_sessions == 0)


async def test_a_batch_that_one_client_must_own() -> None:
    class Together(Counters):
        autoreset = "next_step"

    with served(create_app(Together)) as address:
        await until_ready(f"http://{address}", 5.0)


async def test_one_whose_environment_cannot_be_made_yet() -> None:
    async with serving(answering(error("FACTORY_ERROR"), error("SESSION_ERROR"), observation())) as place:
        await wait(place)
        assert len(place.peers) == 3


@pytest.mark.parametrize("code", ["EXECUTION_ERROR", "VALIDATION_ERROR"])
async def test_one_that_answers_with_what_is_its_users_business(code: str) -> None:
    async with serving(answering(error(code))) as place:
        await wait(place)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "404 Not Found"])
async def test_one_without_sessions_is_ready_when_it_is_healthy(status: str) -> None:
    async with serving(refusing(status, "200 OK")) as place:
        await wait(place)


async def test_one_that_forbids_reset_is_ready_when_it_is_healthy() -> None:
    forbidding = answering(error("EXECUTION_ERROR", error="Forbidden"))
    healthy = refusing("404 Not Found", "200 OK")

    async def behave(peer: Peer) -> None:
        await (forbidding if len(place.peers) == 1 else healthy)(peer)

    async with serving(behave) as place:
        await wait(place)
        assert len(place.peers) == 3  # the second one asked for /ready, which it has not


async def test_a_full_server_is_ready_unless_it_says_that_it_is_not() -> None:
    async def known() -> None:
        """It was read."""

    def full(ready: str, health: str = "200 OK") -> Any:
        async def behave(peer: Peer) -> None:
            await peer.read_request()
            asked = peer.request.split()[1].decode()
            if asked.endswith("/ws"):
                peer.read_request = known
                await answering(error("CAPACITY_REACHED"))(peer)
            else:
                status = ready if asked.endswith("/ready") else health
                peer.writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 9\r\n\r\nall stuck".encode())
                await peer.writer.drain()

        return behave

    for behave in (full("200 OK"), full("404 Not Found")):  # of ours; of the released package
        async with serving(behave) as place:
            await wait(place)
    async with serving(full("503 Service Unavailable")) as place:
        await unready(place, "/ready answers 503: all stuck")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (refusing("404 Not Found", "503 Service Unavailable"), "/health answers 503"),
        (refusing("502 Bad Gateway", "200 OK"), "502"),
        (answering(error("FACTORY_ERROR")), "for a reason"),
        (answering({"type": "state", "data": {}}), "answers reset with"),
        (answering([1, 2]), "answers reset with"),
    ],
)
async def test_one_that_is_not_ready_in_time(behave: Any, reason: str) -> None:
    async with serving(behave) as place:
        said = await unready(place, reason, log=saying("last words"))
    assert re.search(rf": .*{reason}.*ends with:\nlast words", said), said


async def test_one_that_never_answers() -> None:
    async def behave(peer: Peer) -> None:
        with suppress(*CUT):
            await peer.accept()
            await peer.ended()

    async with serving(behave) as place:
        assert "its reset did not answer" in await unready(place, "its reset did not answer")


async def test_one_that_never_shakes_hands() -> None:
    async def behave(peer: Peer) -> None:
        await peer.ended()

    began = time.monotonic()
    async with serving(behave) as place:
        with pytest.raises(NotReady):
            await wait(place, SHORT_S)
    assert time.monotonic() - began < 15


async def test_nobody_there() -> None:
    with pytest.raises(NotReady, match=r"127\.0\.0\.1:1 was not ready within 0\.3 s"):
        await until_ready("http://127.0.0.1:1", SHORT_S)


@contextmanager
def nobody() -> Any:
    """A port that is open, with nobody who accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_an_open_port_is_not_enough() -> None:
    with nobody() as url, pytest.raises(NotReady):
        await until_ready(url, SHORT_S)


async def test_it_ends_at_once_when_the_server_is_gone() -> None:
    looks = iter([None, None, "ended with exit code 3"])
    began = time.monotonic()
    with pytest.raises(
        LaunchFailed, match=r"the server ended with exit code 3 before it was ready.*\nno such module"
    ):
        await until_ready("http://127.0.0.1:1", 60.0, gone=saying(lambda: next(looks)), log=saying("no such module"))
    assert time.monotonic() - began < 10


async def test_it_ends_when_the_server_is_gone_in_the_middle_of_a_reset() -> None:
    async def behave(peer: Peer) -> None:
        await peer.accept()
        await peer.message()
        ended.append("was killed by SIGKILL")
        await peer.ended()

    ended: list[str] = []
    async with serving(behave) as place:
        with pytest.raises(LaunchFailed, match="was killed by SIGKILL"):
            await wait(place, 60.0, gone=saying(lambda: ended[0] if ended else None))


async def test_the_key_is_shown_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(answering(observation())) as place:
        await wait(place, api_key="k" * 20)
        assert place.peers[0].header("Authorization") == f"Bearer {'k' * 20}"


async def test_a_place_that_cannot_be_asked_any_more_is_told() -> None:
    async def gone() -> str | None:
        raise ProviderFailed("no connection to the place")

    with pytest.raises(LaunchFailed, match="cannot be watched any more .no connection to the place"):
        await until_ready("http://127.0.0.1:1", 60.0, gone=gone)


async def test_a_place_that_is_busy_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.providers.readiness.GLANCE_S", 0.001)
    looks: list[None] = []

    async def behave(peer: Peer) -> None:
        await until(lambda: len(looks) > 5)
        await answering(observation())(peer)

    async def gone() -> str | None:
        looks.append(None)
        if len(looks) % 3:
            raise ProviderBusy("too many requests")
        return None

    async with serving(behave) as place:
        await wait(place, 60.0, gone=gone)


async def test_a_place_that_stays_busy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.providers.readiness.GLANCE_S", 0.001)

    async def gone() -> str | None:
        raise ProviderBusy("the engine does not answer")

    with pytest.raises(LaunchFailed, match="cannot be watched any more .the engine does not answer"):
        await until_ready("http://127.0.0.1:1", 60.0, gone=gone)


@pytest.mark.slow
async def test_a_reset_that_takes_longer_than_the_first_attempt_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.providers.readiness.ATTEMPT_S", 0.1)

    async def behave(peer: Peer) -> None:
        try:
            await peer.accept()
            await peer.message()
        except CUT:  # before it had asked
            return
        ended = asyncio.ensure_future(peer.ended())
        await asyncio.wait([ended], timeout=0.5)  # each reset takes so long, and is given up with its connection
        if not ended.done():
            peer.reply(observation())
            await ended

    async with serving(behave) as place:
        await wait(place, 60.0)


async def test_a_wait_that_is_cancelled_leaves_no_connection() -> None:
    async def behave(peer: Peer) -> None:
        await peer.accept()
        await peer.message()
        asked.append(peer)
        await peer.ended()
        ended.append(peer)

    asked: list[Peer] = []
    ended: list[Peer] = []
    async with serving(behave) as place:
        waiting = asyncio.ensure_future(wait(place, 60.0))
        await until(lambda: bool(asked))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: ended == asked)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
async def test_what_is_no_time(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="timeout_s"):
        await until_ready("http://127.0.0.1:1", timeout_s)


async def test_a_path_before_the_endpoint() -> None:
    async with serving(answering(observation())) as place:
        await until_ready(f"{place.url}/team/echo/", 5.0)
        assert place.peers[0].request.startswith(b"GET /team/echo/ws ")
