"""What is written down about one request: a line of `raw.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import IO

__all__ = ["Mode", "Row", "write_rows"]


class Mode(StrEnum):
    """How a request reaches the server."""

    WS = "ws"
    HTTP = "http"


@dataclass(slots=True)
class Row:
    """One request: connect, reset, one step, close. Latencies are seconds, None for phases not reached.

    Attributes:
        request_id: Its number within the batch, from 0.
        mode: `ws` (one session) or `http` (two requests over one connection).
        timestamp: When it began, in seconds since the epoch.
        wait_requested: Seconds the step was asked to take.
        batch_size: How many requests began together.
        connect_latency: `ws`: TCP, TLS and WebSocket handshake. `http`: TCP and TLS.
        reset_latency: From sending the reset to its reply.
        step_latency: From sending the step to its reply.
        total_latency: From the beginning to the reply of the step. The close comes after it.
        waited_seconds, pid, session_hash, host_url: What the environment said in reply to the step.
        success: All of it went well, the close too.
        error_type: Class of the exception that ended the request; None if it succeeded.
        error_message: What that exception said.
        server: Which of several servers it reached: what a gateway calls it, or its address where the load chose it.
            None if that is not known. Not written.
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
        """Notes the exception that ended this request."""
        self.success = False
        self.error_type = type(error).__name__
        self.error_message = str(error) or self.error_type

    @classmethod
    def columns(cls) -> list[str]:
        """The keys of a line, in their order."""
        return [field.name for field in fields(cls) if field.metadata.get("written", True)]

    @property
    def host(self) -> str | None:
        """Where it ran: the server, or else the machine or container that the environment named."""
        return self.server or self.host_url


def write_rows(file: IO[str], rows: Iterable[Row]) -> None:
    """Writes one JSON object a line. Times are cut to microseconds."""
    for row in rows:
        values = asdict(row)
        file.write(json.dumps({key: _rounded(values[key]) for key in row.columns()}) + "\n")


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [_rounded(element) for element in value]
    return round(value, 6) if isinstance(value, float) else value
