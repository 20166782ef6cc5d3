"""Batches of concurrent requests (connect, reset, one step, close), and their summaries."""

from __future__ import annotations

import asyncio
import csv
import json
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cache, partial
from typing import IO, TYPE_CHECKING, Any

from .._http import bearer
from .._processes import raise_file_limit
from .._statistics import quantiles_of
from ..client.endpoints import websocket_url
from ..errors import MissingExtra, ProtocolViolation, from_wire
from ..providers.gateway import HEADER
from .load import LoadCounts, LoadProcess, check_share, run_load, run_loop, split_evenly, without_gc
from .thin_client import ThinClient, destination_of

if TYPE_CHECKING:
    import httpx


class Mode(StrEnum):
    """How a request reaches the server."""

    WS = "ws"
    HTTP = "http"


@dataclass(slots=True)
class RequestRow:
    """One request: connect, reset, one step, close. Latencies are seconds, None for phases not reached.

    Attributes:
        request_id: Its number within the batch, from 0.
        mode: `ws` (one session) or `http` (two requests over one connection).
        timestamp: Time of its start, in seconds since the epoch.
        wait_requested: Requested duration of the step, in seconds.
        batch_size: Number of requests in the batch.
        connect_latency: `ws`: TCP, TLS and WebSocket handshake. `http`: TCP and TLS.
        reset_latency: Time from the reset to its reply.
        step_latency: Time from the step to its reply.
        total_latency: Time from the start to the reply of the step, without the close.
        waited_seconds, pid, session_hash, host_url: Values from the environment's reply to the step.
        success: Whether the whole request succeeded, including the close.
        error_type: Class of the exception that ended the request. None if it succeeded.
        error_message: Message of that exception.
        server: The server of the request, if there are several: its name at the gateway, or its address if the load
            chose it. None if unknown. Not written.
    """

    request_id: int
    mode: Mode
    timestamp: float
    wait_requested: float | None
    batch_size: int
    connect_latency: float | None = None
    reset_latency: float | None = None
    step_latency: float | None = None
    total_latency: float | None = None
    waited_seconds: float | None = None
    pid: int | None = None
    session_hash: str | None = None
    host_url: str | None = None
    success: bool = False
    error_type: str | None = None
    error_message: str | None = None
    server: str | None = field(default=None, metadata={"written": False})

    def fail(self, error: BaseException) -> None:
        """Records the exception that ended this request."""
        self.success = False
        self.error_type = type(error).__name__
        self.error_message = str(error) or self.error_type

    @classmethod
    def columns(cls) -> list[str]:
        """The keys of a line, in order."""
        return [field.name for field in fields(cls) if field.metadata.get("written", True)]

    @property
    def host(self) -> str | None:
        """The server of the request, or the machine or container that the environment reported."""
        return self.server or self.host_url


def write_rows(file: IO[str], rows: Iterable[RequestRow]) -> None:
    """Writes one JSON object per line. Times are rounded down to microseconds."""
    for row in rows:
        values = asdict(row)
        file.write(json.dumps({key: _rounded(values[key]) for key in row.columns()}) + "\n")


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Requests that begin together.

    Attributes:
        url: Address of the server, in any form that `EnvClient` takes.
        mode: `ws` or `http`.
        sessions: Number of requests.
        wait_seconds: Requested duration of each step, in seconds.
        timeout_s: Seconds for each phase of a request.
        further: Addresses of equivalent servers, among which the sessions are divided evenly.
        api_key: API key of the servers.
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
        """Headers of each HTTP request."""
        return bearer(self.api_key)


async def request(batch: RequestBatch, request_id: int, member: LoadProcess) -> RequestRow:
    """Runs one request of a batch. Does not raise: the row has the error."""
    row = RequestRow(request_id, batch.mode, time.time(), batch.wait_seconds, batch.sessions)
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


async def warm_up(batch: RequestBatch) -> None:
    """Lets httpx import and create what its first request needs, before a batch."""
    if batch.mode is Mode.HTTP:
        async with _client(batch, batch.url) as client:
            await client.get("/health")


def require_httpx() -> None:
    """Raises `MissingExtra` if the `http` mode cannot work here."""
    try:
        import httpx  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("httpx", "bench") from None


async def _over_websocket(row: RequestRow, batch: RequestBatch, member: LoadProcess) -> None:
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


async def _over_http(row: RequestRow, batch: RequestBatch, member: LoadProcess) -> None:
    connection = _ConnectTimer()
    async with _client(batch, batch.url_of(row.request_id)) as client:
        began = time.perf_counter()
        try:
            response = await client.post("/reset", json={}, extensions={"trace": connection.trace})
        finally:
            if connection.opened is not None:
                row.connect_latency = connection.opened - began
                member.count("connected")
        try:
            _http_observation(response)
            reset = time.perf_counter()
            row.reset_latency = reset - (connection.opened or began)
            member.count("reset")
            row.server = response.headers.get(HEADER) or row.server
            action = {"action": {"wait_seconds": batch.wait_seconds}}
            observation = _http_observation(await client.post("/step", json=action))
            _note_step(row, began, reset, observation, member)
        finally:
            member.count("closed")


def _note_step(
    row: RequestRow, began: float, reset: float, observation: Mapping[str, Any], member: LoadProcess
) -> None:
    stepped = time.perf_counter()
    row.step_latency = stepped - reset
    row.total_latency = stepped - began
    member.count("steps")
    for name in ("waited_seconds", "pid", "session_hash", "host_url"):
        setattr(row, name, observation.get(name))
    if row.waited_seconds is not None and row.wait_requested is not None and row.waited_seconds < row.wait_requested:
        raise ProtocolViolation(f"the step waited {row.waited_seconds:g} s instead of {row.wait_requested:g} s")


class _ConnectTimer:
    """Measures when the connection of httpx was open."""

    def __init__(self) -> None:
        self.opened: float | None = None

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpx for each event: TCP first, then TLS if it is used."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self.opened = time.perf_counter()


def _http_observation(response: httpx.Response) -> dict[str, Any]:
    """The observation in a response. Raises the server's error, or `ProtocolViolation`."""
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


def _client(batch: RequestBatch, url: str) -> httpx.AsyncClient:
    import httpx

    base_url = "http" + websocket_url(url).removeprefix("ws").removesuffix("/ws")
    tls = default_tls() if base_url.startswith("https") else False
    return httpx.AsyncClient(base_url=base_url, timeout=batch.timeout_s, verify=tls, headers=batch.headers)


# Created once: reading the certificates takes as long as a thousand requests.
default_tls = cache(ssl.create_default_context)


@dataclass(slots=True)
class RequestBatchResult:
    """The result of a batch.

    Attributes:
        rows: One row per request.
        wall_s: Seconds from the start of the first request to the end of the last one, including its close.
    """

    rows: list[RequestRow]
    wall_s: float


def run_batch(
    batch: RequestBatch, processes: int = 1, progress: Callable[[LoadCounts], None] = lambda counts: None
) -> RequestBatchResult:
    """Starts all requests of a batch at the same moment and waits for them.

    Args:
        batch: The requests.
        processes: Number of processes among which the requests are divided.
        progress: Called about ten times a second.

    Raises:
        UsageError: There are too many sessions for the processes.
    """
    check_share(batch.sessions, processes, raise_file_limit())
    parts = run_load(partial(_requests, batch), split_evenly(batch.sessions, processes), progress=progress)
    # All processes of a machine share the clock of perf_counter.
    wall_s = max(ended for _, _, ended in parts) - min(began for _, began, _ in parts)
    return RequestBatchResult([row for rows, _, _ in parts for row in rows], wall_s)


def _requests(batch: RequestBatch, member: LoadProcess, numbers: range) -> tuple[list[RequestRow], float, float]:
    """Runs a load process's share. Returns its rows, and the times of the first start and the last end."""

    async def all_at_once() -> list[RequestRow]:
        return await asyncio.gather(*(request(batch, number, member) for number in numbers))

    raise_file_limit()
    run_loop(warm_up(batch))
    without_gc()
    member.meet()
    began = time.perf_counter()
    rows = run_loop(all_at_once())
    return rows, began, time.perf_counter()


# Percentage of requests that must succeed in each repetition of a batch.
CARRIED_PERCENT = 95


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """One batch. Latencies are seconds, by nearest rank over the requests that succeeded; None if none did.

    Attributes:
        mode: `ws` or `http`.
        num_requests: Number of requests.
        wait_seconds: Requested duration of each step, in seconds.
        repetition: Number of the repetition, from 1.
        successful, failed: Numbers of requests.
        error_rate: `failed` divided by all requests.
        total_wall_time: Seconds from the first start to the last end.
        requests_per_second: Successful requests divided by wall time.
        effective_concurrency: Sum of the total latencies of successful requests divided by wall time, which is the
            average number of concurrent requests.
        unique_pids, unique_sessions, unique_hosts: Numbers of different ones that the environment reported.
        hosts: Number of successful requests by host (`RequestRow.host`). Not in `summary.csv`.
    """

    mode: str
    num_requests: int
    wait_seconds: float
    repetition: int
    successful: int
    failed: int
    error_rate: float
    total_wall_time: float
    connect_p50: float | None
    connect_p95: float | None
    connect_p99: float | None
    reset_p50: float | None
    reset_p95: float | None
    reset_p99: float | None
    step_p50: float | None
    step_p95: float | None
    step_p99: float | None
    total_p50: float | None
    total_p90: float | None
    total_p95: float | None
    total_p99: float | None
    requests_per_second: float
    effective_concurrency: float
    unique_pids: int
    unique_sessions: int
    unique_hosts: int
    hosts: Mapping[str, int] = field(default_factory=dict, metadata={"written": False})

    @classmethod
    def columns(cls) -> list[str]:
        """The header of `summary.csv`."""
        return [field.name for field in fields(cls) if field.metadata.get("written", True)]

    @property
    def host_spread(self) -> float | None:
        """Requests of the host with the most minus those with the fewest, divided by the mean. None without hosts."""
        if not self.hosts:
            return None
        return (max(self.hosts.values()) - min(self.hosts.values())) * len(self.hosts) / sum(self.hosts.values())


def summarize(rows: Sequence[RequestRow], wall_s: float, repetition: int) -> BatchSummary:
    """Summarizes a batch.

    Args:
        rows: Its requests, at least one, with the same mode, size and wait.
        wall_s: Its duration in seconds, above 0.
        repetition: Number of the repetition, from 1.
    """
    good = [row for row in rows if row.success]
    latencies: dict[str, Any] = {
        f"{phase}_{name}": value
        for phase in ("connect", "reset", "step", "total")
        for name, value in quantiles_of(getattr(row, f"{phase}_latency") for row in good)._asdict().items()
        if name != "p90" or phase == "total"
    }
    return BatchSummary(
        mode=rows[0].mode,
        num_requests=len(rows),
        wait_seconds=rows[0].wait_requested or 0.0,
        repetition=repetition,
        successful=len(good),
        failed=len(rows) - len(good),
        error_rate=(len(rows) - len(good)) / len(rows),
        total_wall_time=wall_s,
        **latencies,
        requests_per_second=len(good) / wall_s,
        effective_concurrency=sum(row.total_latency or 0.0 for row in good) / wall_s,
        unique_pids=len({row.pid for row in good} - {None}),
        unique_sessions=len({row.session_hash for row in good} - {None}),
        unique_hosts=len({row.host_url for row in good} - {None}),
        hosts=dict(sorted(Counter(row.host for row in good if row.host is not None).items())),
    )


def max_batch(summaries: Iterable[BatchSummary]) -> int:
    """The largest size of a batch of which at least 95 % of the requests succeeded in every repetition.

    Args:
        summaries: Batches with the same mode and wait.

    Returns:
        The size, or 0 if there is none.
    """
    carried: defaultdict[int, bool] = defaultdict(lambda: True)
    for summary in summaries:
        carried[summary.num_requests] &= 100 * summary.successful >= CARRIED_PERCENT * summary.num_requests
    return max((size for size, holds in carried.items() if holds), default=0)


def error_counts(rows: Iterable[RequestRow]) -> Counter[tuple[str, str]]:
    """Number of occurrences of each error, by type and message."""
    return Counter((row.error_type or "", row.error_message or "") for row in rows if not row.success)


def write_summaries(file: IO[str], summaries: Iterable[BatchSummary]) -> None:
    """Writes CSV with a header. Missing values are empty cells."""
    table = csv.DictWriter(file, BatchSummary.columns(), lineterminator="\n")
    table.writeheader()
    for summary in summaries:
        values = asdict(summary)
        table.writerow({key: _rounded(values[key]) for key in BatchSummary.columns()})
