"""Fuzz target for protocol v1: whatever arrives, both sides answer or refuse, and never break.

With atheris installed, from the root of the project: `python -m tests.fuzz.fuzz_v1 [libFuzzer options]`.
"""

from __future__ import annotations

import json
import sys

from pydantic import field_validator

from openenv.errors import OpenEnvError, ProtocolViolation
from openenv.protocol.client import ClientProtocol
from openenv.protocol.server import ServerProtocol
from openenv.types import Action

__all__ = ["main", "one_input"]

KINDS = ("reset", "step", "state", "mcp")


class Turn(Action):
    """An action with enough structure for faults in many places."""

    column: int
    note: str = ""
    path: list[tuple[int, float]] = []
    options: dict[str, bool | None] = {}

    @field_validator("column")
    @classmethod
    def on_the_board(cls, column: int) -> int:
        if column < 0:
            raise ValueError("columns count from 0")
        return column


_server = ServerProtocol(Turn)


def one_input(data: bytes) -> None:
    """Gives one frame to both sides. Raises only if the package has a fault."""
    _to_server(data)
    for kind in KINDS:
        _to_client(kind, data)


def _to_server(data: bytes) -> None:
    try:
        message = _server.receive(data)
    except OpenEnvError as error:
        _refused(error)
        return
    assert message["type"] in {*KINDS, "close"}
    if message["type"] == "step":
        assert isinstance(message["data"], Turn)


def _refused(error: OpenEnvError) -> None:
    """Every refusal must reach the client that caused it."""
    assert json.loads(_server.error(error))["data"]["code"] == error.code


def _to_client(kind: str, data: bytes) -> None:
    client = ClientProtocol()
    _, request = client.send(kind)
    try:
        reply = client.receive(data)
    except ProtocolViolation:
        return
    assert reply.request is request
    assert (reply.error is None) or isinstance(reply.error, OpenEnvError)
    assert client.outstanding == 0


def main() -> None:
    """Runs libFuzzer until it finds a fault or is stopped."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
