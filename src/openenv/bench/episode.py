"""One request of a storm: connect, reset, one step, close."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..client.url import websocket_url
from ..errors import MissingExtra, ProtocolViolation, from_wire
from ..gateway import HEADER
from .crew import Member
from .destination import destination_of
from .row import Mode, Row
from .thin_client import ThinClient

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["Batch", "request", "require_httpx", "warm_up"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that begin together.

    Attributes:
        url: Address of the server, in any form that `EnvClient` takes.
        mode: `ws` or `http`.
        sessions: How many there are.
        wait_seconds: What each step asks for.
        timeout_s: Seconds for each phase of a request.
        further: Addresses of further servers that do the same: sessions are shared out evenly, and since all begin
            together, no server ever has more than another.
        api_key: The key that they ask for.
    """

    url: str
    mode: Mode
    sessions: int
    wait_seconds: float
    timeout_s: float
    further: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)

    def url_of(self, number: int) -> str:
        """The server of a request, by its number."""
        return (self.url, *self.further)[number % (1 + len(self.further))]

    @property
    def headers(self) -> dict[str, str]:
        """What every request says that is not a WebSocket's."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


async def request(batch: Batch, request_id: int, member: Member) -> Row:
    """Does one request of a batch. Never raises: what went wrong stands in the row."""
    row = Row(request_id, batch.mode, time.time(), batch.wait_seconds, batch.sessions)
    row.server = batch.url_of(request_id) if batch.further else None
    try:
        if batch.mode is Mode.HTTP:
            await _over_http(row, batch, member)
        else:
            await _over_websocket(row, batch, member)
        row.success = True
    except Exception as error:  # noqa: BLE001  the edge of a request: one that fails must not end the others
        row.fail(error)
        member.count("failed")
    member.count("finished")
    return row


async def warm_up(batch: Batch) -> None:
    """Does once, before a storm, what httpx imports and makes with its first request."""
    if batch.mode is Mode.HTTP:
        async with _client(batch, batch.url) as client:
            await client.get("/health")


def require_httpx() -> None:
    """Raises `MissingExtra` if the `http` mode cannot work here."""
    try:
        import httpx  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("httpx", "bench") from None


async def _over_websocket(row: Row, batch: Batch, member: Member) -> None:
    began = time.perf_counter()
    destination = destination_of(batch.url_of(row.request_id), batch.api_key)
    client = await ThinClient.connect(destination, row.request_id, batch.timeout_s)
    row.server = client.route or row.server
    try:
        connected = time.perf_counter()
        row.connect_latency = connected - began
        member.count("connected")
        first = await client.call("reset", {}, batch.timeout_s)
        reset = time.perf_counter()
        row.reset_latency = reset - connected
        member.count("reset")
        second = await client.call("step", {"wait_seconds": batch.wait_seconds}, batch.timeout_s)
        _note_step(row, began, reset, second, member)
    finally:
        await client.close()
        member.count("closed")
    hashes = (first.get("session_hash"), second.get("session_hash"))
    if hashes[0] != hashes[1]:
        raise ProtocolViolation(f"reset was answered by session {hashes[0]}, step by session {hashes[1]}")


async def _over_http(row: Row, batch: Batch, member: Member) -> None:
    connection = _Connection()
    async with _client(batch, batch.url_of(row.request_id)) as client:
        began = time.perf_counter()
        try:
            response = await client.post("/reset", json={}, extensions={"trace": connection.trace})
        finally:
            if connection.opened is not None:
                row.connect_latency = connection.opened - began
                member.count("connected")
        try:
            _observation(response)
            reset = time.perf_counter()
            row.reset_latency = reset - (connection.opened or began)
            member.count("reset")
            row.server = response.headers.get(HEADER) or row.server
            action = {"action": {"wait_seconds": batch.wait_seconds}}
            observation = _observation(await client.post("/step", json=action))
            _note_step(row, began, reset, observation, member)
        finally:
            member.count("closed")


def _note_step(row: Row, began: float, reset: float, observation: Mapping[str, Any], member: Member) -> None:
    stepped = time.perf_counter()
    row.step_latency = stepped - reset
    row.total_latency = stepped - began
    member.count("steps")
    for name in ("waited_seconds", "pid", "session_hash", "host_url"):
        setattr(row, name, observation.get(name))
    if row.waited_seconds is not None and row.wait_requested is not None and row.waited_seconds < row.wait_requested:
        raise ProtocolViolation(f"the step waited {row.waited_seconds:g} s of the {row.wait_requested:g} s asked for")


class _Connection:
    """Learns from httpx when its connection was open."""

    def __init__(self) -> None:
        self.opened: float | None = None

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpx as things happen: TLS, where there is any, after TCP."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self.opened = time.perf_counter()


def _observation(response: httpx.Response) -> dict[str, Any]:
    """What a response carries. Raises the server's error, or `ProtocolViolation`."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict) and isinstance(body.get("observation"), dict):
        observation: dict[str, Any] = body["observation"]
        return observation
    if isinstance(body, dict) and "code" in body:
        raise from_wire(body)
    raise ProtocolViolation(f"HTTP {response.status_code} from {response.url.path}: {response.text[:200]}")


def _client(batch: Batch, url: str) -> httpx.AsyncClient:
    import httpx

    base_url = _http_url(url)
    return httpx.AsyncClient(base_url=base_url, timeout=batch.timeout_s, verify=_tls(base_url), headers=batch.headers)


def _http_url(url: str) -> str:
    return "http" + websocket_url(url).removeprefix("ws").removesuffix("/ws")


@lru_cache
def _tls(base_url: str) -> ssl.SSLContext | bool:
    """Made once: reading the certificates takes as long as a thousand requests."""
    import ssl

    return ssl.create_default_context() if base_url.startswith("https") else False
