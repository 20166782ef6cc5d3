"""What a server and the process of a session say to each other.

Both ways a message is a frame: its length, then its contents. To the process go a byte that names the operation and,
pickled, its argument. What comes back is msgpack and nothing else: the process may be hostile.
"""

from __future__ import annotations

import pickle
import struct
from enum import IntEnum
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import (
    EnvironmentFailed,
    InvalidAction,
    InvalidArgument,
    OpenEnvError,
    ResetRequired,
    UsageError,
    from_wire,
)
from ...protocol.codec import codec_of
from ...protocol.outcome import encode_outcome, encode_state_fields
from ..executor import describe
from .reference import dumps

__all__ = [
    "HEAD",
    "Made",
    "RemoteError",
    "Verb",
    "decode",
    "decode_request",
    "encode_error",
    "encode_reply",
    "encode_request",
]

HEAD = struct.Struct("<I")
_MOST_TEXT = 16 * 1024
_codec = codec_of("openenv.v2.msgpack")


class Verb(IntEnum):
    """What is asked of the process."""

    MAKE = 0
    RESET = 1
    STEP = 2
    STEP_WITH = 3
    STATE = 4
    CALL = 5
    CLOSE = 6
    SAVE = 7
    LOAD = 8
    FORK = 9


class Made(Struct):
    """What the process tells of the environment that it made.

    Attributes:
        name: Its class's name.
        closes: Whether its `close` does anything.
        seedable: Whether its `reset` takes a seed.
        forks: Whether a copy of its process has a copy of it; else its state is sent.
    """

    name: str
    closes: bool
    seedable: bool
    forks: bool = False


class _Reply(Struct):
    ok: bool = False
    observation: dict[str, Any] | None = None
    reward: bool | int | float | None = None
    done: bool = False
    state: Any = None
    made: Made | None = None
    value: Any = None
    error: dict[str, Any] | None = None
    kind: str = ""
    text: str = ""
    trace: str = ""


class RemoteError(Exception):
    """What an environment raised in another process; a subclass has the name of what was raised there."""


def encode_request(verb: int, argument: Any) -> bytes:
    """A frame for the process.

    Raises:
        UsageError: The argument cannot be sent to another process.
    """
    try:
        pickled = dumps(argument)
    except Exception as error:
        raise UsageError(f"{type(argument).__name__} cannot be sent to the session's process: {error}") from error
    return b"%b%c%b" % (HEAD.pack(len(pickled) + 1), verb, pickled)


def decode_request(frame: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """In the process: verb and argument."""
    return frame[0], pickle.loads(memoryview(frame)[1:])  # noqa: S301 - the server is who it trusts


def encode_reply(verb: int, result: Any) -> bytes:
    """In the process: the contents of a reply.

    Raises:
        StepFailed, ValueError: The result cannot be sent.
    """
    if verb in {Verb.RESET, Verb.STEP, Verb.STEP_WITH}:
        return _codec.reply(None, encode_outcome(result, _codec))
    if verb == Verb.STATE:
        return _codec.reply(None, encode_state_fields(result, _codec))
    if verb == Verb.MAKE:
        return msgspec.msgpack.encode({"ok": True, "made": result})
    return _codec.encode({"ok": True, "value": result})


def encode_error(error: BaseException, trace: str = "") -> bytes:
    """In the process: what was raised."""
    facts = None
    if isinstance(error, OpenEnvError):
        facts = {**error.data, **error.facts()}
    said = {
        "ok": False,
        "kind": type(error).__name__,
        "text": describe(error)[:_MOST_TEXT],
        "trace": trace[-_MOST_TEXT:],
    }
    try:
        return _codec.encode({**said, "error": facts})
    except ValueError:
        return _codec.encode({name: _clean(text) for name, text in said.items()})


def decode(frame: bytes | bytearray) -> tuple[Any, BaseException | None]:
    """What a reply says: a result or an error.

    Returns:
        The fields of an observation or state, `Made`, or a plain value.

    Raises:
        ValueError: It is no reply.
    """
    try:
        reply = _decode(frame)
    except (ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise ValueError(f"a reply that cannot be read: {error}") from None
    if not reply.ok:
        return None, _error_of(reply)
    if reply.observation is not None:
        fields = reply.observation
        fields["reward"], fields["done"] = reply.reward, reply.done
        return fields, None
    if reply.made is not None:
        return reply.made, None
    return reply.state if reply.state is not None else reply.value, None


def _error_of(reply: _Reply) -> BaseException:
    error: BaseException | None = None
    if reply.error is not None:
        known = from_wire(reply.error)
        if isinstance(known, (EnvironmentFailed, InvalidAction, InvalidArgument, ResetRequired)):
            error = known
    if error is None:
        kind = reply.kind if reply.kind.isidentifier() and len(reply.kind) < 100 else "Exception"
        error = _class(kind)(reply.text or kind)
    if reply.trace:
        error.add_note(reply.trace)
    return error


@lru_cache(maxsize=256)
def _class(name: str) -> type[RemoteError]:
    return type(name, (RemoteError,), {})


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


_decode = _codec.decoder(_Reply)
