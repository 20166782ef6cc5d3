"""Fuzz target for protocol v2, both codecs: whatever arrives, both sides answer or refuse, and never break.

With atheris installed, from the root of the project: `python -m tests.fuzz.fuzz_v2 [libFuzzer options]`.
"""

from __future__ import annotations

import sys

from openenv.errors import InvalidAction, OpenEnvError, ProtocolViolation
from openenv.protocol.client import ClientProtocolV2, Event
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of
from openenv.protocol.messages import MAX_ID, BatchOp, Op, RefusedOp, StepOp
from openenv.protocol.server import ServerProtocolV2

from .fuzz_v1 import Turn

__all__ = ["MAX_BATCH", "OPS", "main", "one_input"]

OPS = ("state", "batch")
MAX_BATCH = 8

_servers = [ServerProtocolV2(Turn, codec_of(name), MAX_BATCH) for name in SUBPROTOCOLS]


def one_input(data: bytes) -> None:
    """Gives one frame to both sides in both codecs. Raises only if the package has a fault."""
    for server in _servers:
        _to_server(server, data)
        for op in OPS:
            _to_client(server, op, data)


def _to_server(server: ServerProtocolV2, data: bytes) -> None:
    message = server.receive(data)
    if isinstance(message, RefusedOp):
        assert message.id is None or 1 <= message.id <= MAX_ID
        _refused(server, message.id, message.error)
        return
    assert 1 <= message.id <= MAX_ID
    calls = message.calls if isinstance(message, BatchOp) else [message]
    assert 1 <= len(calls) <= MAX_BATCH
    for call in calls:
        _call(server, call)


def _call(server: ServerProtocolV2, call: Op | RefusedOp) -> None:
    if isinstance(call, RefusedOp):
        assert call.id == 0
        _refused(server, 1, call.error)
    elif isinstance(call, StepOp):
        try:
            assert isinstance(server.action(call.action), Turn)
        except InvalidAction as error:
            _refused(server, 1, error)


def _refused(server: ServerProtocolV2, number: int | None, error: OpenEnvError) -> None:
    """Every refusal must reach the client that caused it."""
    client = ClientProtocolV2(server.codec)
    _, request = client.request("state", {})
    answer = client.receive(server.reply(number and request.id, server.error(error)))
    assert not isinstance(answer, Event)
    assert type(answer.error) is type(error)
    assert answer.request is (request if number else None)


def _to_client(server: ServerProtocolV2, op: str, data: bytes) -> None:
    client = ClientProtocolV2(server.codec)
    _, request = client.request(op, {})
    try:
        answer = client.receive(data)
    except ProtocolViolation:
        assert client.outstanding == 1
        return
    if isinstance(answer, Event):
        assert isinstance(answer.name, str)
        return
    assert answer.request in {None, request}
    assert answer.error is None or isinstance(answer.error, OpenEnvError)
    assert client.outstanding == (answer.request is None or answer.more)


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
