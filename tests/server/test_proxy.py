"""Requests that are handed on to the worker process of their session, which is played by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import Request

from openenv.errors import InvalidMessage, SessionLost, StepTimeout, UnknownSession
from openenv.server import HTTPEnvServer
from openenv.server.proxy import ARRIVAL, ForwardingInfo, forward_to_owner, proxy_line, read_proxy_line
from openenv.settings import ServerSettings

from ..asynchronous import until
from .probe import ProbeAction, ProbeEnvironment, ProbeObservation

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Owner:
    """The worker that has the session: hears what it is handed, and says what the test has it say.

    Attributes:
        first: What was handed over with the connection.
        heard: The request.
        left: Set when the other side has closed.
    """

    def __init__(self, script: Script | None):
        self._script = script
        self.first = b""
        self.heard = b""
        self.left = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def redirect(self, key: str, connection: socket.socket, read: bytes) -> bool:
        if self._script is None or key != "2a":
            return False
        self.first = read
        self.tasks.append(asyncio.get_running_loop().create_task(self._serve(connection.dup())))
        connection.close()
        return True

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            await self._answer(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = await reader.readuntil(b"\r\n\r\n")
        length = int(self.heard.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.heard += await reader.readexactly(length)
        assert self._script is not None
        await self._script(reader, writer)
        while await reader.read(1000):
            pass
        self.left.set()


def saying(*words: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(words))

    return script


def then_closing(*words: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(words))
        writer.close()

    return script


@asynccontextmanager
async def owned_by(script: Script | None) -> AsyncIterator[tuple[HTTPEnvServer, Owner]]:
    settings = ServerSettings.read({})
    server = HTTPEnvServer(ProbeEnvironment, ProbeAction, ProbeObservation, settings=settings)
    owner = Owner(script)
    server.worker_key, server.redirect = "1", owner.redirect
    yield server, owner
    for task in owner.tasks:
        task.cancel()
    await asyncio.gather(*owner.tasks, return_exceptions=True)
    await asyncio.sleep(0)  # what was closed is closed in the next turn of the loop


class Client:
    """What asks, and hears the answer."""

    def __init__(self, body: bytes = b"", handed_on: bool = False, **scope: Any):
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/step",
            "headers": [(b"host", b"here"), (b"authorization", b"Bearer x"), (b"connection", b"keep-alive")],
            "client": ("1.2.3.4", 5),
            "server": ("10.0.0.1", 8000),
            ARRIVAL: ForwardingInfo(b"/step?x=%20y", handed_on),
            **scope,
        }
        self._body = body
        self.gone = asyncio.Event()
        self.heard: list[Any] = []
        self._asked = False

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.heard.append(message)

    @property
    def request(self) -> Request:
        return Request(self.scope, self.receive)

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.heard)


OK = b"HTTP/1.1 200 OK\r\nx-mine: yes\r\ndate: then\r\nserver: it\r\nconnection: close\r\n"


async def test_the_owner_answers_in_the_place_of_the_worker_that_was_asked():
    async with owned_by(saying(OK, b"content-length: 5\r\n\r\nhello")) as (server, owner):
        client = Client(b'{"action": {}}')
        answer = await forward_to_owner(client.request, server, "2a.name")
        assert answer is not None
        assert (answer.status_code, answer.body) == (200, b"hello")
        assert answer.raw_headers == [(b"x-mine", b"yes"), (b"content-length", b"5")]
        head, _, body = owner.heard.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        assert line == b"POST /step?x=%20y HTTP/1.1"
        assert body == b'{"action": {}}'
        said = {field.partition(b":")[0].lower(): field.partition(b": ")[2] for field in fields}
        assert said == {
            b"host": b"here",
            b"authorization": b"Bearer x",
            b"content-length": b"14",
            b"connection": b"close",
        }
        assert owner.first == b"PROXY TCP4 1.2.3.4 10.0.0.1 5 8000\r\n"
        await asyncio.wait_for(owner.left.wait(), 5)


@pytest.mark.parametrize("session", ["name", "1.name", "no-worker.name", "", "."])
async def test_what_belongs_here_or_to_nobody_is_not_handed_on(session):
    async with owned_by(saying(b"never")) as (server, owner):
        assert await forward_to_owner(Client().request, server, session) is None
        assert owner.first == b""


async def test_a_session_of_a_worker_that_has_ended_is_lost_by_the_infrastructure():
    async with owned_by(saying(b"never")) as (server, owner):
        with pytest.raises(UnknownSession, match="worker process has ended") as raised:
            await forward_to_owner(Client().request, server, "3b.name")
        assert raised.value.blame == "infrastructure"
        assert owner.first == b""


async def test_what_was_handed_on_once_is_not_handed_on_again():
    async with owned_by(saying(b"never")) as (server, owner):
        assert await forward_to_owner(Client(handed_on=True).request, server, "2a.name") is None
        # Nor what came over a transport that does not say how it arrived.
        assert await forward_to_owner(Client(**{ARRIVAL: None}).request, server, "2a.name") is None
        assert owner.first == b""


async def test_an_answer_without_a_length_is_passed_on_as_it_comes():
    more = asyncio.Event()

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await more.wait()
        writer.write(b"7\r\ndata: 2\r\n0\r\n\r\n")

    async with owned_by(events) as (server, owner):
        client = Client()
        answer = await forward_to_owner(client.request, server, "2a.name")
        assert answer is not None
        passing = asyncio.create_task(answer(client.scope, client.receive, client.send))
        await until(lambda: client.content == b"data: 1")
        assert not passing.done()
        more.set()
        await passing
        assert client.content == b"data: 1data: 2"
        assert (b"content-type", b"text/event-stream") in client.heard[0]["headers"]
        assert b"transfer-encoding" not in dict(client.heard[0]["headers"])
        await asyncio.wait_for(owner.left.wait(), 5)


async def test_a_client_that_leaves_takes_the_road_to_the_owner_along():
    async with owned_by(saying()) as (server, owner):
        client = Client()
        asking = asyncio.create_task(forward_to_owner(client.request, server, "2a.name"))
        await until(lambda: owner.heard != b"")
        client.gone.set()
        answer = await asking
        assert answer is not None
        assert answer.status_code == 499
        await asyncio.wait_for(owner.left.wait(), 5)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_does_too():
    async with owned_by(saying(OK, b"transfer-encoding: chunked\r\n\r\n7\r\ndata: 1\r\n")) as (server, owner):
        client = Client()
        answer = await forward_to_owner(client.request, server, "2a.name")
        assert answer is not None
        passing = asyncio.create_task(answer(client.scope, client.receive, client.send))
        await until(lambda: client.content == b"data: 1")
        client.gone.set()
        await passing
        await asyncio.wait_for(owner.left.wait(), 5)


async def test_a_request_that_is_cancelled_does_too():
    async with owned_by(saying()) as (server, owner):
        asking = asyncio.create_task(forward_to_owner(Client().request, server, "2a.name"))
        await until(lambda: owner.heard != b"")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(owner.left.wait(), 5)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
        b"what is HTTP?\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_an_owner_that_goes_away_before_it_has_answered_takes_its_session_along(words):
    async with owned_by(then_closing(words)) as (server, _):
        with pytest.raises(SessionLost, match=r"2a\.name has ended"):
            await forward_to_owner(Client().request, server, "2a.name")


async def test_a_stream_that_ends_in_the_middle_is_not_passed_off_as_whole():
    async with owned_by(then_closing(OK, b"transfer-encoding: chunked\r\n\r\n7\r\ndata: 1\r\n")) as (server, _):
        client = Client()
        answer = await forward_to_owner(client.request, server, "2a.name")
        assert answer is not None
        with pytest.raises(ConnectionError):
            await answer(client.scope, client.receive, client.send)
        assert not any(message.get("more_body") is False for message in client.heard)


async def test_an_owner_that_says_nothing_has_the_time_of_the_request(monkeypatch):
    monkeypatch.setattr("openenv.server.proxy.SPARE_S", 0.01)
    async with owned_by(saying()) as (server, owner):
        with pytest.raises(StepTimeout, match=r"within 0\.02 s"):
            await forward_to_owner(Client().request, server, "2a.name", 0.02)
        await asyncio.wait_for(owner.left.wait(), 5)


async def test_a_request_that_cannot_be_said_again_is_refused():
    headers = [(b"host", b"here"), (b"host", b"there")]
    async with owned_by(saying()) as (server, _):
        with pytest.raises(InvalidMessage, match="cannot be forwarded"):
            await forward_to_owner(Client(headers=headers).request, server, "2a.name")


@pytest.mark.parametrize(
    ("client", "local", "line"),
    [
        (("1.2.3.4", 5), ("10.0.0.1", 80), b"PROXY TCP4 1.2.3.4 10.0.0.1 5 80\r\n"),
        (("::1", 5), ("::1", 80), b"PROXY TCP6 ::1 ::1 5 80\r\n"),
        (None, ("10.0.0.1", 80), b"PROXY UNKNOWN\r\n"),
        (("1.2.3.4", 5), ("/run/socket", None), b"PROXY UNKNOWN\r\n"),
        (("a b", 5), ("10.0.0.1", 80), b"PROXY UNKNOWN\r\n"),
        (("1.2.3.4\r\nX", 5), ("10.0.0.1", 80), b"PROXY UNKNOWN\r\n"),
    ],
)
def test_who_asks_is_said_in_a_line_before_the_request(client, local, line):
    assert proxy_line({"client": client, "server": local}) == line


def test_the_owner_takes_the_client_for_who_it_is():
    named = (("1.2.3.4", 5), ("10.0.0.1", 80))
    assert read_proxy_line(b"PROXY TCP4 1.2.3.4 10.0.0.1 5 80\r\n") == named
    assert read_proxy_line(proxy_line({"client": ("::1", 5), "server": ("::1", 80)})) == (("::1", 5), ("::1", 80))
    assert read_proxy_line(b"PROXY UNKNOWN\r\n") is None


async def test_a_request_of_the_first_http_needs_no_host():
    async with owned_by(saying(OK, b"content-length: 0\r\n\r\n")) as (server, owner):
        assert await forward_to_owner(Client(headers=[]).request, server, "2a.name") is not None
        assert b"host: openenv" in owner.heard.lower()
