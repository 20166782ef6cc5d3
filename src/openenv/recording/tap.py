"""Turn the calls of one session into lines of a record, encoded as JSON with large arrays stored apart."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec
from pydantic import BaseModel
from pydantic_core import to_json

from .. import __version__
from ..errors import OpenEnvError, ProtocolViolation
from ..protocol import values
from ..protocol.arrays import write_array
from ..protocol.client import check_outcome
from ..protocol.codecs import Body, JsonCodec, escape_marks, is_plain
from ..protocol.coercion import forms_of
from ..protocol.encoding import encode_outcome
from ..telemetry.logs import warn_once
from .storage import LARGE_BYTES, Blob, npy_of

# A client cannot guess these tokens, so none of its strings can pass as one.
_SECRET = secrets.token_hex(24)
_numbers = count()
_UNKNOWN: Any = object()
# Fields of a class that may hold values other than plain ones, cached since every step needs them.
_loose: dict[type[Any], tuple[str, ...] | None] = {}


class RecordCodec(JsonCodec):
    """Encodes JSON as protocol v2 does, but with NaN and infinity as strings, since JSON has no numbers for them.

    Large arrays and bytes become blobs, with a token in place of the hash, which is not known yet. Each tap has one
    codec, which encodes one line between two calls of `take_blobs`.

    Attributes:
        blobs: Large values encoded since the last call of `take_blobs`.
    """

    list_bytes = LARGE_BYTES - 1

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self._portable = values.Portable(self._of_bytes, self._of_array, escape_marks)

    def take_blobs(self) -> list[Blob]:
        """Returns the blobs and clears the list."""
        blobs, self.blobs = self.blobs, []
        return blobs

    def encode(self, value: Any, plain: bool = False) -> bytes:
        cls: Any = type(value)
        loose = _loose.get(cls, _UNKNOWN)
        if loose is _UNKNOWN:
            loose = None  # `__dict__` is not all of such an instance
            if issubclass(cls, BaseModel) and values.is_plain_model(cls):
                loose = tuple(
                    name for name, field in cls.model_fields.items() if not values.is_tight(field.annotation)
                )
            _loose[cls] = loose
        try:
            if loose is None:
                return self._write(value, plain)
            fields = value.__dict__
            convert = forms_of(cls, self.list_bytes, self.compresses)
            if convert is not None:
                fields = convert(fields)
            plain = True
            for name in loose:
                if (inside := fields.get(name)) and not is_plain(inside):
                    plain = False
            return self._write(fields, plain)
        except values.UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        """The result of a call, without the fields that records omit. Changes `fields`, which the caller discards."""
        assert type(fields) is dict
        del fields["ok"]
        fields.pop("metadata", None)
        reward = fields["reward"]
        if reward is not None and type(reward) is not float:
            fields["reward"] = float(reward)  # one type for the column of all environments
        try:
            return Body(len(fields), self._write(fields, plain)[1:-1])
        except values.UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def _write(self, value: Any, plain: bool) -> bytes:
        if plain or is_plain(value):
            try:
                text = values.encode_plain(value, "strings")
            except TypeError:  # a nested value is not plain
                return to_json(self._portable(value), inf_nan_mode="strings")
            if values.DOLLAR not in text or b'{"$' not in text:
                return text
        return to_json(self._portable(value), inf_nan_mode="strings")

    def _of_bytes(self, data: bytes) -> dict[str, Any]:
        if len(data) < LARGE_BYTES:
            return {"$bytes": b64encode(data).decode()}
        return {"$bytes": {"sha256": self._beside(".bin", data), "size": len(data)}}

    def _of_array(self, array: Any) -> dict[str, Any]:
        dtype, shape, data = write_array(array)
        if len(data) < LARGE_BYTES:
            return {"$array": {"dtype": dtype, "shape": shape, "data": b64encode(data).decode()}}
        return {
            "$array": {"dtype": dtype, "shape": shape, "sha256": self._beside(".npy", *npy_of(dtype, shape, data))}
        }

    def _beside(self, suffix: str, *parts: bytes) -> str:
        token = f"{_SECRET}{next(_numbers):016x}"
        self.blobs.append(Blob(token.encode(), suffix, parts))
        return token


logger = logging.getLogger("openenv.recording")
_INT64 = range(-(2**63), 2**63)
_NO_OUTCOME = b'"observation":null,"reward":null,"done":false,"terminated":null,"truncated":null'
_APART = ("seed", "episode_id")
_monotonic = time.monotonic
_text = msgspec.json.Encoder().encode


TapFactory = Callable[[str], "Tap | None"]
"""Creates the tap of the session with this id; None if the session is not recorded."""


class LineSink(Protocol):
    """The destination of lines. Its methods never block or fail.

    Attributes:
        epoch: Unix time at which the monotonic clock was 0.
    """

    epoch: float

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        """Queues one line with its blobs."""


class Subject(NamedTuple):
    """The environment of recorded sessions.

    Attributes:
        environment: Name of the environment.
        version: Version of the environment, if known.
        schema: Hash of its contract.
    """

    environment: str
    version: str | None
    schema: str | None

    @property
    def tail(self) -> bytes:
        """The bytes at the end of each of its lines."""
        versions = {"openenv": __version__, "environment": self.version}
        facts = {"environment": self.environment, "versions": versions, "schema": self.schema}
        return b"," + _text(facts)[1:] + b"\n"


class Source(NamedTuple):
    """Origin of a forked or restored state: a session, its episode and the last step."""

    session_id: str
    episode_id: str
    step: int


RunningCall = tuple[bytes, float, list[Blob] | None]
"""A running call: the start of its line, its start in monotonic seconds, and the blobs of its arguments."""


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Tap:
    """Creates the lines of one session, one call at a time: `reset` or `do`, then `ended` or `returned`.

    Arguments are encoded at once, since environments may change them, or objects returned earlier. A result passed to
    `returned` is encoded by `settle`, and before the next call at the latest.

    Args:
        _sink: Destination of the lines.
        tail: End of each line, from the subject.
        session_id: Id of the session.

    Attributes:
        asked: The running call; None if no call runs, or if its result is recorded already.
        step: Number of the episode's last step; 0 is the reset.
        tail: End of each line, from the subject.
    """

    _sink: LineSink
    tail: bytes
    session_id: str
    step: int = 0
    asked: RunningCall | None = None
    _codec: RecordCodec = field(default_factory=RecordCodec)
    _resets: int = 0
    _returned: tuple[RunningCall, Any, float] | None = None
    _episode: str | None = None
    _head: bytes = b""
    _source: bytes = b""

    @property
    def episode_id(self) -> str:
        """The episode's id: the client's, or else one made from the session's id."""
        return f"{self.session_id}-{self._resets}" if self._episode is None else self._episode

    @property
    def place(self) -> Source:
        """The session's position, for the record of a session that continues from its state."""
        return Source(self.session_id, self.episode_id, self.step)

    def reset(self, arguments: Mapping[str, Any]) -> None:
        """Records the start of a reset."""
        if self._returned is not None:
            self.settle()
        self._resets += 1
        self.step = 0
        self._source = self._head = b""
        given = arguments.get("episode_id")
        self._episode = None if given is None else str(given)
        seed = arguments.get("seed")
        others = {name: value for name, value in arguments.items() if name not in _APART}
        seed_json = b"null"
        if type(seed) is int and seed in _INT64:
            seed_json = b"%d" % seed
        elif seed is not None:
            others["seed"] = seed
        start = b'%b0,"seed":%b,"arguments":%b,' % (self._make_head(), seed_json, self._written(others))
        self.asked = (start, _monotonic(), self._codec.take_blobs())

    def do(self, action: Any, arguments: Mapping[str, Any] | None = None) -> None:
        """Records the start of a step."""
        if self._returned is not None:
            self.settle()
        self.step += 1
        start = b'%b%d,"action":%b,' % (self._head or self._make_head(), self.step, self._written(action))
        if arguments:
            start += b'"step_arguments":%b,' % self._written(arguments)
        blobs = self._codec.take_blobs() if self._codec.blobs else None
        self.asked = (start, _monotonic(), blobs)

    def ended(self, result: Any, error: BaseException | None) -> None:
        """Records a result or an error, which the client may get while the call still runs.

        Later results of such a call are not recorded.
        """
        asked = self.asked
        if asked is not None:
            self._write(asked, result, error, _monotonic())

    def returned(self, result: Any) -> None:
        """Keeps a result that does not change before the next call; `settle` records it."""
        asked, self.asked = self.asked, None
        if asked is not None:
            self._returned = (asked, result, _monotonic())

    def settle(self, refusal: Exception | None = None) -> None:
        """Records the kept result, or the error that the client got because the result could not be sent."""
        returned, self._returned = self._returned, None
        if returned is not None:
            asked, result, ended = returned
            self._write(asked, result, refusal, ended)

    def answered(self, asked: RunningCall, payload: Mapping[str, Any]) -> None:
        """Records the reply that a client got: `observation`, `reward`, `done`, and further fields."""
        observation = payload.get("observation")
        inside = observation if isinstance(observation, dict) else {}
        done, terminated = payload.get("done") is True, payload.get("terminated", inside.get("terminated"))
        truncated = True in (payload.get("truncated"), inside.get("truncated"))
        reply = {
            "ok": True,
            "observation": observation,
            "reward": payload.get("reward"),
            "done": done,
            "terminated": terminated if isinstance(terminated, bool) else done and not truncated,
            "truncated": truncated,
        }
        try:
            check_outcome(payload)
            self._add(asked, _monotonic(), self._codec.body(reply).fields, b"null")
        except ProtocolViolation as violation:
            self.failed(asked, violation)
        except (TypeError, ValueError) as fault:  # the reply of a foreign server may be malformed
            self.failed(asked, ProtocolViolation(f"the reply cannot be recorded: {fault}"))

    def failed(self, asked: RunningCall, error: BaseException) -> None:
        """Records the error that a client got."""
        self._add(asked, _monotonic(), _NO_OUTCOME, self._error_json(error))

    def continue_from(self, source: Source) -> None:
        """Continues from the state of another session, or from an earlier one of this session."""
        self.settle()
        self._resets = self._resets or 1
        self._episode, self.step = source.episode_id, source.step
        self._head = b""
        self._source = b',"source":' + _text(source._asdict())

    def _write(self, asked: RunningCall, result: Any, error: BaseException | None, ended: float) -> None:
        if error is None:
            try:
                outcome = encode_outcome(result, self._codec).fields
            except OpenEnvError as refused:  # the client gets this error too: a reward is not a number, for instance
                error = refused
        if error is None:
            self._add(asked, ended, outcome, b"null")
        else:
            self._add(asked, ended, _NO_OUTCOME, self._error_json(error))

    def _add(self, asked: RunningCall, ended: float, outcome: bytes, error: bytes) -> None:
        self.asked = None
        start, began, blobs = asked
        line = b'%b%b,"time":%b,"duration_s":%.6f,"error":%b%b%b' % (
            start,
            outcome,
            _text(self._sink.epoch + began),
            ended - began,
            error,
            self._source,
            self.tail,
        )
        if self._source:
            self._source = b""
        if blobs or self._codec.blobs:
            self._sink.append(line, [*(blobs or ()), *self._codec.take_blobs()])
        else:
            self._sink.append(line)

    def _make_head(self) -> bytes:
        names = (self._written(self.episode_id), self._written(self.session_id))
        self._head = b'{"episode_id":%b,"session_id":%b,"step":' % names
        return self._head

    def _written(self, value: Any) -> bytes:
        """Encodes a value; if that fails, its repr, since the call must not fail."""
        try:
            return self._codec.encode(value)
        except Exception as error:  # noqa: BLE001 - the edge to foreign code: its values may raise anything
            name, fault = type(value).__qualname__, type(error).__qualname__
            warn_once(logger, "a %s cannot be recorded: records have its repr in its place: %s", name, fault)
            try:
                text = repr(value)
            except Exception:  # noqa: BLE001 - as above
                text = f"<{type(value).__name__}>"
            return to_json(_clean(text))

    def _error_json(self, error: BaseException) -> bytes:
        return to_json(_clean(f"{type(error).__name__}: {error}"))


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# Most calls recorded before the event loop polls for requests again: as many as it reads before it executes them.
MOST_AT_ONCE = 32


class DeferredRecords:
    """Records calls after their replies were sent, so that no step waits for its own record.

    A call is recorded at the latest before its session's next call, or when the session closes.

    Attributes:
        later: Schedules a function for when the ready replies were sent; None for the loop's next iteration.
    """

    def __init__(self) -> None:
        self.later: Callable[[Callable[[], None]], None] | None = None
        self._taps: deque[Tap] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, tap: Tap) -> None:
        """Schedules the record of a call that has ended."""
        loop = asyncio.get_running_loop()
        if not self._taps or loop is not self._loop:  # this loop also does the rest of a closed one
            self._loop = loop
            if self.later is None:
                loop.call_soon(self._settle)
            else:
                self.later(self._settle)
        self._taps.append(tap)

    def _settle(self) -> None:
        taps = self._taps
        for _ in range(min(len(taps), MOST_AT_ONCE)):
            taps.popleft().settle()
        if taps:
            asyncio.get_running_loop().call_soon(self._settle)
