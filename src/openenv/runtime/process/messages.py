"""Messages between the server, the fork server and session processes, and how each is encoded."""

from __future__ import annotations

import inspect
import io
import pickle
import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from ... import errors
from ..._introspection import unwrap_partial
from ...protocol.codecs import MsgpackCodec
from ...protocol.encoding import encode_outcome, encode_state_fields
from ..executor import PASSED_ERRORS, RemoteError, error_text, source_of
from .sandbox import ProcessLimits

# From the server: fork a process (the message has the socket to it); end one.
FORK, END = "fork", "end"
# A session's process is about to fork another one (the message has its stderr); this is its number.
EXPECT, ADOPT = "expect", "adopt"
# To the server: a process has ended; no process can be made, since the environment's module fails.
EXITED, FAILED = "exited", "failed"
# Why a process has ended, if the fork server knows.
TOO_MANY, UNFORKED = "too many", "unforked"
MESSAGE_BYTES = 64 * 1024
# Most bytes per read: below the size for which the allocator maps and unmaps memory each time.
CHUNK_BYTES = 64 * 1024
# Seconds between the request to end and the kill, for cleanup in the process.
GRACE_S = 0.2


class ForkServerPlan(NamedTuple):
    """The configuration of a fork server.

    Attributes:
        factory: The factory of environments, pickled by reference.
        limits: The limits of each process.
        sandbox: The sandbox in which the processes run.
        kept: Folders that a sandboxed process can see in its own /tmp.
    """

    factory: bytes
    limits: ProcessLimits
    sandbox: Literal["none", "bwrap"]
    kept: list[str]


def pickle_by_reference(factory: Callable[[], Any]) -> bytes:
    """Pickles a factory by reference.

    Args:
        factory: A class or a function of a module, or a partial of one.

    Raises:
        UsageError: Another process could not find it; the message says what to change.
    """
    made_by = unwrap_partial(factory)
    if "__reference__" not in getattr(made_by, "__dict__", ()):
        _check(made_by)
    try:
        return dumps(factory)
    except Exception as error:
        raise errors.UsageError(
            f"{_name(made_by)} cannot be pickled for another process, as process isolation requires: {error}"
        ) from error


def dumps(value: Any) -> bytes:
    """Pickles a value for a session's process.

    For a class that is made at run time, `__reference__ = (function, *arguments)`: the other process calls the
    function.
    """
    if "__reference__" in type(value).__dict__:
        return _dumps_with_references(value)
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return _dumps_with_references(value)


def _dumps_with_references(value: Any) -> bytes:
    target = io.BytesIO()
    _Pickler(target, pickle.HIGHEST_PROTOCOL).dump(value)
    return target.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        reference = vars(value).get("__reference__") if isinstance(value, type) else None
        return NotImplemented if reference is None else (reference[0], tuple(reference[1:]))


def _check(made_by: Any) -> None:
    name = _name(made_by)
    if not (isinstance(made_by, type) or inspect.isfunction(made_by)):
        raise errors.UsageError(
            f"process isolation needs a class or a function of a module, or a partial of one, to make environments, "
            f"not a {type(made_by).__name__}"
        )
    if made_by.__module__ == "__main__":
        raise errors.UsageError(
            f"{name} is defined in the main script, from which other processes cannot import it: move it to a module "
            "and import it from there, or serve without process isolation"
        )
    found: Any = sys.modules.get(made_by.__module__)
    for part in made_by.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not made_by:
        raise errors.UsageError(
            f"{name} cannot be imported by its name from module {made_by.__module__}, as another process must do: "
            "define it at the top of the module, or serve without process isolation"
        )


def _name(made_by: Any) -> str:
    return str(getattr(made_by, "__qualname__", type(made_by).__name__))


HEAD = struct.Struct("<I")
_MOST_TEXT = 16 * 1024


class PipeCodec(MsgpackCodec):
    """The codec of replies. The server compresses arrays for its clients, of which some take lists."""

    compresses: ClassVar[bool] = False


_codec = PipeCodec()


class Verb(IntEnum):
    """The requests to the process. Those that a profile has are operations, which only the process can execute."""

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

    def __call__(self, environment: Any, argument: Any) -> Any:
        raise AssertionError("this environment is in another process")


class MadeEnvironment(msgspec.Struct):
    """The process's description of the environment that it made.

    Attributes:
        name: The name of its class.
        closes: Whether its `close` does anything.
        seedable: Whether its `reset` accepts a seed.
        forks: Whether a fork of its process copies the environment; otherwise its state is sent.
    """

    name: str
    closes: bool
    seedable: bool
    forks: bool = False


class _Reply(msgspec.Struct):
    ok: bool = False
    observation: dict[str, Any] | None = None
    reward: bool | int | float | None = None
    done: bool = False
    state: Any = None
    made: MadeEnvironment | None = None
    value: Any = None
    error: dict[str, Any] | None = None
    kind: str = ""
    text: str = ""
    trace: str = ""
    source: str = ""


def encode_request(verb: int, argument: Any) -> bytes:
    """A frame for the process.

    Raises:
        UsageError: The argument cannot be sent to another process.
    """
    try:
        pickled = dumps(argument)
    except Exception as error:
        raise errors.UsageError(
            f"{type(argument).__name__} cannot be sent to the session's process: {error}"
        ) from error
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
    """In the process: the contents of a reply with an exception."""
    facts = {**error.data, **error.facts()} if isinstance(error, errors.OpenEnvError) else None
    said = {
        "kind": type(error).__name__,
        "text": error_text(error)[:_MOST_TEXT],
        "trace": trace[-_MOST_TEXT:],
        "source": source_of(error)[-_MOST_TEXT:],
    }
    try:
        return _codec.encode({"ok": False, **said, "error": facts})
    except ValueError:
        clean = {name: text.encode("utf-8", "replace").decode() for name, text in said.items()}
        return _codec.encode({"ok": False, **clean})


def decode(frame: bytes | bytearray) -> tuple[Any, BaseException | None]:
    """The result or the error in a reply.

    Returns:
        The fields of an observation or state, `MadeEnvironment`, or a plain value.

    Raises:
        ValueError: It is not a reply.
    """
    try:
        reply = _decode(frame)
    except (ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise ValueError(f"its reply cannot be read: {error}") from None
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
        known = errors.from_wire(reply.error)
        if isinstance(known, PASSED_ERRORS):
            error = known
    if error is None:
        kind = reply.kind if reply.kind.isidentifier() and len(reply.kind) < 100 else "Exception"
        error = remote = _error_class(kind)(reply.text or kind)
        remote.source = reply.source
    if reply.trace:
        error.add_note(reply.trace)
    return error


@lru_cache(maxsize=256)
def _error_class(name: str) -> type[RemoteError]:
    return type(name, (RemoteError,), {})


_decode = _codec.decoder(_Reply)
