"""What is recorded of one session: its calls become lines, each when it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
from pydantic_core import to_json

from .. import __version__
from ..errors import OpenEnvError, ProtocolViolation
from ..interrupts import from_signal
from ..log_once import warn_once
from ..protocol.outcome import encode_outcome
from ..protocol.report import unsendable
from ..protocol.reward import check_outcome
from .blobs import Blob
from .codec import RecordCodec

__all__ = ["Asked", "Source", "Subject", "Tap", "Tapping", "Track"]

logger = logging.getLogger("openenv.recording")
_INT64 = range(-(2**63), 2**63)
_NO_OUTCOME = b'"observation":null,"reward":null,"done":false,"terminated":null,"truncated":null'
_APART = ("seed", "episode_id")
_monotonic = time.monotonic
_text = msgspec.json.Encoder().encode


Tapping = Callable[[str], "Tap | None"]
"""Gives the tap of a session of that name; None if it is not among those that are recorded."""


class Track(Protocol):
    """Where lines go. Nothing here waits and nothing fails.

    Attributes:
        epoch: Unix time at which the monotonic clock was 0.
    """

    epoch: float

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        """Takes one line, with what is to be stored beside it."""


class Subject(NamedTuple):
    """What sessions are sessions of.

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


Asked = tuple[bytes, float, list[Blob] | None]
"""A call that runs: the start of its line up to what was asked, when it began in monotonic seconds, and what is to be
stored beside what was asked."""


class Tap:
    """Makes the lines of one session: of one call at a time, `reset` or `do`, then `ended`, `returned` or `gave_up`.

    What is told of a call is written down at once, since environments may change what they were given or have
    returned; what was `returned` is when `settle` is called, and before the next call at the latest.

    Args:
        track: Where lines go.
        tail: Of the subject.
        session_id: The session's name.

    Attributes:
        asked: The call that runs; None: there is none, or what it has come to was recorded already.
        step: Number of the last step of the episode; 0 is its reset.
        tail: Of the subject.
    """

    __slots__ = (
        "__weakref__",
        "_codec",
        "_episode",
        "_head",
        "_resets",
        "_returned",
        "_source",
        "_track",
        "asked",
        "session_id",
        "step",
        "tail",
    )

    def __init__(self, track: Track, tail: bytes, session_id: str):
        self.session_id = session_id
        self.step = 0
        self.tail = tail
        self.asked: Asked | None = None
        self._track = track
        self._codec = RecordCodec()
        self._resets = 0
        self._returned: tuple[Asked, Any, float] | None = None
        self._episode: str | None = None
        self._head = b""
        self._source = b""

    @property
    def episode_id(self) -> str:
        """What the episode is called: as its client says, else after the session."""
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
        told = b"null"
        if type(seed) is int and seed in _INT64:
            told = b"%d" % seed
        elif seed is not None:
            others["seed"] = seed
        start = b'%b0,"seed":%b,"arguments":%b,' % (self._make_head(), told, self._written(others))
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
        """The call has ended with an observation or an error; one that was given up was recorded already."""
        asked = self.asked
        if asked is not None:
            self._write(asked, result, error, _monotonic())

    def returned(self, result: Any) -> None:
        """The same with an observation that nobody changes before the next call: it is written down later."""
        asked, self.asked = self.asked, None
        if asked is not None:
            self._returned = (asked, result, _monotonic())

    def settle(self) -> None:
        """Writes down what was returned."""
        returned, self._returned = self._returned, None
        if returned is not None:
            asked, result, ended = returned
            self._write(asked, result, None, ended)

    def refused(self, error: Exception) -> None:
        """What was returned could not be sent: the client has the error in its place."""
        returned, self._returned = self._returned, None
        if returned is not None:
            asked, _, ended = returned
            self._write(asked, None, error, ended)

    def gave_up(self, error: OpenEnvError) -> None:
        """The client has been told that the call failed, whatever becomes of it."""
        self.ended(None, error)

    def answered(self, asked: Asked, payload: Mapping[str, Any]) -> None:
        """A client has the reply to a call: `observation`, `reward`, `done`, and what else goes beside it."""
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
            self._add(asked, _monotonic(), _NO_OUTCOME, self._told(violation))
        except (TypeError, ValueError) as fault:  # a server may say anything
            unreadable = ProtocolViolation(f"the reply cannot be recorded: {fault}")
            self._add(asked, _monotonic(), _NO_OUTCOME, self._told(unreadable))

    def failed(self, asked: Asked, error: BaseException) -> None:
        """A client has an error in place of the reply."""
        self._add(asked, _monotonic(), _NO_OUTCOME, self._told(error))

    def went_on_from(self, source: Source) -> None:
        """The session has taken on the state of another one, or its own of before."""
        self.settle()
        self._resets = self._resets or 1
        self._episode, self.step = source.episode_id, source.step
        self._head = b""
        self._source = b',"source":' + _text(source._asdict())

    def _write(self, asked: Asked, result: Any, error: BaseException | None, ended: float) -> None:
        if error is None:
            try:
                outcome = encode_outcome(result, self._codec).fields
            except OpenEnvError as refused:  # what its client hears, too: a reward that is no number, or the like
                error = refused
            except BaseException as fault:  # the edge to foreign code, whose values may raise anything
                if from_signal(fault):
                    raise
                error = unsendable(result, fault)
        if error is None:
            self._add(asked, ended, outcome, b"null")
        else:
            self._add(asked, ended, _NO_OUTCOME, self._told(error))

    def _add(self, asked: Asked, ended: float, outcome: bytes, error: bytes) -> None:
        self.asked = None
        start, began, blobs = asked
        line = b'%b%b,"time":%b,"duration_s":%.6f,"error":%b%b%b' % (
            start,
            outcome,
            _text(self._track.epoch + began),
            ended - began,
            error,
            self._source,
            self.tail,
        )
        if self._source:
            self._source = b""
        if blobs or self._codec.blobs:
            self._track.append(line, [*(blobs or ()), *self._codec.take_blobs()])
        else:
            self._track.append(line)

    def _make_head(self) -> bytes:
        names = (self._written(self.episode_id), self._written(self.session_id))
        self._head = b'{"episode_id":%b,"session_id":%b,"step":' % names
        return self._head

    def _written(self, value: Any) -> bytes:
        """What cannot be written is told in words: the call is done, whatever can be told of it."""
        try:
            return self._codec.encode(value)
        except Exception as error:  # noqa: BLE001 - the edge to foreign code, whose values may raise anything
            name, fault = type(value).__qualname__, type(error).__qualname__
            warn_once(logger, "a %s cannot be recorded: records have its repr in its place: %s", name, fault)
            return to_json(_clean(_in_words(value)))

    def _told(self, error: BaseException) -> bytes:
        return to_json(_clean(f"{type(error).__name__}: {error}"))


def _in_words(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(value).__name__}>"


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
