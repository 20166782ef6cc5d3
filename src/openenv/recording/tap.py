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
from ..protocol.codecs import Body, JsonCodec, is_plain
from ..protocol.encoding import encode_outcome
from ..telemetry.logs import warn_once
from .storage import LARGE_BYTES, Blob, npy_of

_MARKS = frozenset({"$bytes", "$array", "$object"})
# A client cannot guess these marks, so none of its texts can pass as one.
_SECRET = secrets.token_hex(24)
_numbers = count()
_UNKNOWN: Any = object()
# The fields of a class that may hold other than plain values, found once: this is on the path of every step.
_loose: dict[type[Any], tuple[str, ...] | None] = {}


class RecordCodec(JsonCodec):
    """The JSON of protocol v2, but NaN and infinity are texts, since their bare words are no JSON, and what is large
    is a `Blob`: its hash is not known yet.

    One for each tap: between two calls of `take_blobs` it writes one line.

    Attributes:
        blobs: What is to be stored beside what was written since.
    """

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self._portable = values.Portable(self._of_bytes, self._of_array, _escaped)

    def take_blobs(self) -> list[Blob]:
        """Takes them away."""
        blobs, self.blobs = self.blobs, []
        return blobs

    def encode(self, value: Any) -> bytes:
        cls = type(value)
        loose = _loose.get(cls, _UNKNOWN)
        if loose is _UNKNOWN:
            loose = None  # its instances are not simply their dict
            if issubclass(cls, BaseModel) and values.is_plain_model(cls):
                loose = tuple(
                    name for name, field in cls.model_fields.items() if not values.is_tight(field.annotation)
                )
            _loose[cls] = loose
        try:
            if loose is None:
                return self._write(value, False)
            fields = value.__dict__
            plain = True
            for name in loose:
                if (inside := fields.get(name)) and not is_plain(inside):
                    plain = False
            return self._write(fields, plain)
        except values.UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        """The outcome of a call, without the parts that records omit. Changes the dict, which is not needed again."""
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
            except TypeError:  # not so plain
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


def _escaped(fields: dict[str, Any]) -> dict[str, Any]:
    return {"$object": fields} if len(fields) == 1 and not _MARKS.isdisjoint(fields) else fields


logger = logging.getLogger("openenv.recording")
_INT64 = range(-(2**63), 2**63)
_NO_OUTCOME = b'"observation":null,"reward":null,"done":false,"terminated":null,"truncated":null'
_APART = ("seed", "episode_id")
_monotonic = time.monotonic
_text = msgspec.json.Encoder().encode


TapFactory = Callable[[str], "Tap | None"]
"""The tap of a session of that name; None if the session is not recorded."""


class LineSink(Protocol):
    """The destination of lines. No method waits or fails.

    Attributes:
        epoch: Unix time at which the monotonic clock was 0.
    """

    epoch: float

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        """Takes one line, with its blobs."""


class Subject(NamedTuple):
    """The environment of the sessions.

    Attributes:
        environment: Its name.
        version: Its version, if it is known.
        schema: The hash of its contract.
    """

    environment: str
    version: str | None
    schema: str | None

    @property
    def tail(self) -> bytes:
        """The end of each of its lines."""
        versions = {"openenv": __version__, "environment": self.version}
        facts = {"environment": self.environment, "versions": versions, "schema": self.schema}
        return b"," + _text(facts)[1:] + b"\n"


class Source(NamedTuple):
    """The state that a session went on from: of another session, after that step of its episode."""

    session_id: str
    episode_id: str
    step: int


RunningCall = tuple[bytes, float, list[Blob] | None]
"""A call that runs: the start of its line up to what was asked, when it began in monotonic seconds, and what is to be
stored beside what was asked."""


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Tap:
    """Makes the lines of one session: of one call at a time, `reset` or `do`, then `ended` or `returned`.

    The arguments of a call are written down at once, since environments may change what they were given or have
    returned; what was `returned` is when `settle` is called, and before the next call at the latest.

    Args:
        _sink: Where lines go.
        tail: Of the subject.
        session_id: The session's name.

    Attributes:
        asked: The call that runs; None: there is none, or what it has come to was recorded already.
        step: Number of the last step of the episode; 0 is its reset.
        tail: Of the subject.
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
        """The name of the episode: the client's, else one after the session."""
        return f"{self.session_id}-{self._resets}" if self._episode is None else self._episode

    @property
    def place(self) -> Source:
        """Where the session stands, for another one that goes on from there."""
        return Source(self.session_id, self.episode_id, self.step)

    def reset(self, arguments: Mapping[str, Any]) -> None:
        """An episode begins."""
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
        """A step begins."""
        if self._returned is not None:
            self.settle()
        self.step += 1
        start = b'%b%d,"action":%b,' % (self._head or self._make_head(), self.step, self._written(action))
        if arguments:
            start += b'"step_arguments":%b,' % self._written(arguments)
        blobs = self._codec.take_blobs() if self._codec.blobs else None
        self.asked = (start, _monotonic(), blobs)

    def ended(self, result: Any, error: BaseException | None) -> None:
        """The call has ended with an observation or an error, or the client has an error while it still runs.

        Later results of such a call are not recorded.
        """
        asked = self.asked
        if asked is not None:
            self._write(asked, result, error, _monotonic())

    def returned(self, result: Any) -> None:
        """The same with an observation that does not change before the next call: it is written down later."""
        asked, self.asked = self.asked, None
        if asked is not None:
            self._returned = (asked, result, _monotonic())

    def settle(self, refusal: Exception | None = None) -> None:
        """Records the result, or the error that the client got because the result could not be sent."""
        returned, self._returned = self._returned, None
        if returned is not None:
            asked, result, ended = returned
            self._write(asked, result, refusal, ended)

    def answered(self, asked: RunningCall, payload: Mapping[str, Any]) -> None:
        """A client has the reply to a call: `observation`, `reward`, `done`, and further fields."""
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
        except (TypeError, ValueError) as fault:  # a server may say anything
            self.failed(asked, ProtocolViolation(f"the reply cannot be recorded: {fault}"))

    def failed(self, asked: RunningCall, error: BaseException) -> None:
        """A client has an error in place of the reply."""
        self._add(asked, _monotonic(), _NO_OUTCOME, self._error_json(error))

    def continue_from(self, source: Source) -> None:
        """The session has taken on the state of another one, or its own of before."""
        self.settle()
        self._resets = self._resets or 1
        self._episode, self.step = source.episode_id, source.step
        self._head = b""
        self._source = b',"source":' + _text(source._asdict())

    def _write(self, asked: RunningCall, result: Any, error: BaseException | None, ended: float) -> None:
        if error is None:
            try:
                outcome = encode_outcome(result, self._codec).fields
            except OpenEnvError as refused:  # what its client hears, too: a reward that is no number, or the like
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
        """The repr stands for a value that cannot be written: the call is done all the same."""
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


# Recorded before the event loop looks for requests again: as many as are read before they are executed.
MOST_AT_ONCE = 32


class DeferredRecords:
    """Records calls when their replies have been sent: no step waits for its own record.

    A call is recorded before the next call of its session at the latest, or when that is closed.

    Attributes:
        later: Has a function called when the replies that are ready have been sent; None: in the loop's next turn.
    """

    def __init__(self) -> None:
        self.later: Callable[[Callable[[], None]], None] | None = None
        self._taps: deque[Tap] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, tap: Tap) -> None:
        """A call has ended, and its reply is on its way."""
        loop = asyncio.get_running_loop()
        if not self._taps or loop is not self._loop:  # what another loop was closed too early for is done by this one
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
