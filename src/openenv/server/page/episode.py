"""The episode of one session for pages: its calls, their log, and the author's view."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel, Field
from pydantic_core import to_json

from ..._asyncio import run_without_loop
from ...errors import OpenEnvError
from ...protocol.encoding import encode_observation, encode_state
from ...protocol.errors import UNSEEDED
from ...runtime.executor import Done, error_text
from ...runtime.session import Session
from ...telemetry.logs import log_extra, warn_once
from ...types import BaseMessage
from ..shared_sessions import PendingCall, SharedSession, StartCall

# HTML may contain pictures as data: URLs.
HTML_BYTES = 4 * 1024 * 1024
MOST_ACTIONS = 200
LABEL_LENGTH = 200
ACTION_BYTES = 64 * 1024


class Drawing(msgspec.Struct):
    """The author's view of an observation.

    Attributes:
        html: The result of `render_web`; None for the default view.
        actions: The result of `web_actions`: pairs of a label and an action's fields.
        notes: Error messages for the page.
    """

    html: str | None = None
    actions: list[tuple[str, dict[str, Any]]] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class ObservationFields(dict[str, Any]):
    """The fields of an observation, with `reward` and `done`, for `render_web` and `web_actions`.

    Read a field as `obs["board"]`, or as `obs.board` unless dicts have a method of that name.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the observation has no field {name!r}: it has {', '.join(self)}") from None


def draw(environment: Any, fields: dict[str, Any]) -> str | Awaitable[str]:
    """Calls `render_web` and `web_actions` with an observation, given as plain data.

    Returns:
        A `Drawing` as JSON; the results of asynchronous methods must be awaited, as for steps.
    """
    methods = {name: getattr(environment, name, None) for name in _PARTS}
    may_wait = any(map(inspect.iscoroutinefunction, methods.values()))
    drawing = _draw(methods, fields, may_wait)
    return drawing if may_wait else run_without_loop(drawing, "the drawing returned an awaitable, but is not async")


def read_drawing(answer: Any) -> Drawing:
    """Decodes the `Drawing` in the answer of `draw`.

    Raises:
        ValueError: The answer is not a drawing.
    """
    if not isinstance(answer, str):
        raise ValueError("it is not text")
    try:
        return msgspec.json.decode(answer, type=Drawing)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


async def _draw(methods: dict[str, Callable[[Any], Any] | None], fields: dict[str, Any], may_wait: bool) -> str:
    """Calls the methods; waits for their results only if `may_wait`."""
    drawing = Drawing()
    for name, method in methods.items():
        try:
            outcome = None if method is None else method(ObservationFields(fields))
            if may_wait and inspect.isawaitable(outcome):
                outcome = await outcome
        except Exception as error:  # noqa: BLE001 - the edge to foreign code: a picture fails no step
            drawing.notes.append(f"{name} raised {type(error).__name__}: {error_text(error)}"[:2000])
        else:
            if outcome is not None:
                _PARTS[name](drawing, outcome)
    drawing.notes = [note.encode("utf-8", "replace").decode() for note in drawing.notes]
    return msgspec.json.encode(drawing).decode()


def _show(drawing: Drawing, html: Any) -> None:
    if not isinstance(html, str):
        drawing.notes.append(_type_note("render_web", html, "HTML as text, or None for the default view"))
    elif len(html) > HTML_BYTES or len(text := html.encode("utf-8", "replace")) > HTML_BYTES:
        drawing.notes.append(f"render_web returned more than {HTML_BYTES >> 20} MiB, which is not shown")
    else:
        drawing.html = text.decode()


def _offer(drawing: Drawing, offered: Any) -> None:
    if not isinstance(offered, Sequence) or isinstance(offered, str):
        drawing.notes.append(_type_note("web_actions", offered, "a list of (label, action) pairs"))
        return
    if len(offered) > MOST_ACTIONS:
        drawing.notes.append(
            f"web_actions returned {len(offered)} actions, of which the first {MOST_ACTIONS} are shown"
        )
    for place, pair in enumerate(offered[:MOST_ACTIONS], 1):
        try:
            drawing.actions.append(_pair(pair))
        except Exception as fault:  # noqa: BLE001 - foreign objects: reading them may raise anything
            drawing.notes.append(f"action {place} of web_actions is not shown: {error_text(fault)[:500]}")


def _pair(pair: Any) -> tuple[str, dict[str, Any]]:
    label, action = pair
    if not isinstance(label, str):
        raise TypeError(f"its label is a {type(label).__name__}, and must be text")
    if not isinstance(action, (dict, BaseModel)):
        raise TypeError(f"a {type(action).__name__} stands where the fields of an action should, as a dict")
    text = to_json(action, inf_nan_mode="strings", bytes_mode="base64")
    if len(text) > ACTION_BYTES:
        raise ValueError(f"it has {len(text)} bytes, over the limit of {ACTION_BYTES}")
    fields: dict[str, Any] = msgspec.json.decode(text)
    return label[:LABEL_LENGTH].encode("utf-8", "replace").decode(), fields


def _type_note(method: str, value: Any, wanted: str) -> str:
    if inspect.iscoroutine(value):
        value.close()
    return f"{method} returned a {type(value).__name__}: it must return {wanted}"


# The author's methods, and what their results become.
_PARTS: dict[str, Callable[[Drawing, Any], None]] = {"render_web": _show, "web_actions": _offer}

logger = logging.getLogger("openenv.server")

# Seconds that an answer waits for its drawing.
DRAWING_S = 3.0
# Seconds until a running drawing is stopped, or its session if the drawing cannot be stopped.
STUCK_S = 30.0
# Limits of the log of one episode, since a server has many visitors and observations may be pictures.
MOST_LOGS = 200
LOG_BYTES = 1024 * 1024


class ActionLog(BaseMessage):
    """One action of an episode and its outcome. `timestamp` is ISO 8601, in UTC."""

    timestamp: str
    action: dict[str, Any]
    observation: dict[str, Any]
    reward: bool | int | float | None = None
    done: bool
    step_count: int


class EpisodeState(BaseMessage):
    """The state of an episode for the page."""

    episode_id: str | None = None
    step_count: int = 0
    current_observation: dict[str, Any] | None = None
    action_logs: list[ActionLog] = Field(default_factory=list)
    is_reset: bool = True


class PageResult(NamedTuple):
    """The outcome of a reset or step.

    Attributes:
        payload: The observation as a v1 payload.
        state: The environment's state after the call; None if it could not be read.
        drawing: The author's view of the observation.
        steps: Steps since the last reset.
        duration_s: Seconds of the call itself.
    """

    payload: dict[str, Any]
    state: dict[str, Any] | None
    drawing: Drawing
    steps: int
    duration_s: float


@dataclass(eq=False)
class PageEpisode:
    """Plays in one session, and keeps the parts of the episode that a page shows.

    After each reset and step it reads the state and the drawing, before any other call of the session. Errors there
    become notes; the reset or step does not fail.

    Attributes:
        shared: The session.
        draws: Whether to ask for drawings.
        most_logs, most_bytes: Limits of the log of actions.
        steps: Steps since the last reset.
        watchers: Events that are set at each change.
    """

    shared: SharedSession
    draws: bool = True
    most_logs: int = MOST_LOGS
    most_bytes: float = LOG_BYTES
    steps: int = field(default=0, init=False)
    watchers: set[asyncio.Event] = field(default_factory=set, init=False)
    _id: str | None = field(default=None, init=False)
    _observation: dict[str, Any] | None = field(default=None, init=False)
    _logs: deque[tuple[ActionLog, int]] = field(default_factory=deque, init=False)
    _is_reset: bool = field(default=True, init=False)

    @classmethod
    def of(cls, shared: SharedSession) -> PageEpisode:
        """The episode of a shared session."""
        if shared.page is None:
            shared.page = cls(shared, most_logs=MOST_LOGS, most_bytes=LOG_BYTES)
        episode: PageEpisode = shared.page
        return episode

    @property
    def state(self) -> EpisodeState:
        """The state for the page."""
        return EpisodeState(
            episode_id=self._id,
            step_count=self.steps,
            current_observation=self._observation,
            action_logs=[log for log, _ in self._logs],
            is_reset=self._is_reset,
        )

    async def reset(self, arguments: dict[str, Any], timeout_s: float | None = None) -> PageResult:
        """Starts an episode. Raises the errors of `SharedSession.call`."""

        def begun(encoded: dict[str, Any], size: int) -> None:
            self._logs.clear()
            self.steps = 0
            self._is_reset = True

        def encode(session: Session, observation: Any) -> bytes:
            return encode_observation(observation, notes=None if session.takes_seed_of(arguments) else UNSEEDED)

        return await self._play(lambda session, done: session.reset(arguments, done), encode, begun, timeout_s)

    async def step(
        self, action: Any, arguments: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> PageResult:
        """Takes one step. Raises the errors of `SharedSession.call`."""

        def did(payload: dict[str, Any], size: int) -> None:
            self.steps += 1
            self._is_reset = False
            fields, weight = _plain(action)
            log = ActionLog(
                timestamp=datetime.now(UTC).isoformat(),
                action=fields,
                observation=payload["observation"],
                reward=payload["reward"],
                done=payload["done"],
                step_count=self.steps,
            )
            self._logs.append((log, size + weight))
            total = sum(size for _, size in self._logs)
            while len(self._logs) > 1 and (len(self._logs) > self.most_logs or total > self.most_bytes):
                total -= self._logs.popleft()[1]

        def start(session: Session, done: Any) -> None:
            if arguments:
                session.step_with(action, arguments, done)
            else:
                session.step(action, done)

        return await self._play(start, lambda _, observation: encode_observation(observation), did, timeout_s)

    async def _play(
        self,
        start: StartCall,
        encode: Callable[[Session, Any], bytes],
        happened: Callable[[dict[str, Any], int], None],
        timeout_s: float | None,
    ) -> PageResult:
        began = time.monotonic()
        aftermath = _FollowUp(self.shared, self.draws)

        def begin(session: Session, done: Any) -> None:
            nonlocal began
            began = time.monotonic()
            start(session, done)

        def ended(observation: Any) -> tuple[dict[str, Any], int, float]:
            took = time.monotonic() - began
            text = encode(self.shared.session, observation)
            payload: dict[str, Any] = json.loads(text)
            happened(payload, len(text))
            self._observation = payload["observation"]
            aftermath.begin(payload)
            return payload, self.steps, took

        payload, steps, took = await self.shared.call(begin, timeout_s, ended)
        await aftermath.wait()
        state = aftermath.state
        episode_id = self.shared.session.episode if state is None else state.get("episode_id")
        self._id = None if episode_id is None else str(episode_id)
        for watcher in self.watchers:
            watcher.set()
        return PageResult(payload, state, aftermath.drawing, steps, took)


def _plain(action: Any) -> tuple[dict[str, Any], int]:
    """The fields of an action for the log, and their size in bytes."""
    try:
        text = to_json(action, fallback=repr, inf_nan_mode="constants")
        fields = json.loads(text)
    except Exception as error:  # noqa: BLE001 - foreign types; the step is done in any case
        name = type(action).__qualname__
        warn_once(logger, "a %s cannot be written as JSON: the page's log shows none: %s", name, error_text(error))
        return {}, 0
    return fields if isinstance(fields, dict) else {"action": fields}, len(text)


class _FollowUp:
    """Further calls to the environment after a call: its state, then its drawing."""

    def __init__(self, shared: SharedSession, draws: bool):
        self.state: dict[str, Any] | None = None
        self.drawing = Drawing()
        self._shared = shared
        self._draws = draws
        self._payload: dict[str, Any] = {}
        self._pendings: list[PendingCall] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closed = False

    def begin(self, payload: dict[str, Any]) -> None:
        """Submits the further calls. Call it while the first call ends, so that they come next."""
        self._payload = payload
        stop = asyncio.get_running_loop().call_later(STUCK_S, self._stop)
        self._over.add_done_callback(lambda _: stop.cancel())
        self._ask_next(Session.read_state, self._stated)

    async def wait(self) -> None:
        """Waits for all answers, with a time limit."""
        await asyncio.wait([self._over], timeout=DRAWING_S)
        if not self._over.done():
            late = f"render_web and web_actions gave no answer within {DRAWING_S:g} s: the page goes on without them"
            self.drawing.notes.append(late)
        self._closed = True

    def _stated(self, state: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                self.state = json.loads(encode_state(state))
            except OpenEnvError as failure:
                error = failure
        if error is not None:
            self._note("state", error)
        if self._draws:
            seen = {name: self._payload[name] for name in ("reward", "done")}
            fields = {**self._payload["observation"], **seen}
            self._ask_next(lambda session, done: session.call(draw, fields, done), self._drawn)
        else:
            self._over.set_result(None)

    def _drawn(self, answer: Any, error: BaseException | None) -> None:
        if inspect.iscoroutine(answer):
            answer.close()
            error = TypeError(
                "it is asynchronous, which an inline environment cannot wait for: make it a plain method"
            )
        if error is None and not self._closed:
            try:
                drawing = read_drawing(answer)
            except ValueError as fault:
                error = fault
            else:
                drawing.notes = [*self.drawing.notes, *drawing.notes]
                self.drawing = drawing
        if error is not None:
            self._note("render_web", error)
        self._over.set_result(None)

    def _ask_next(self, start: StartCall, done: Done) -> None:
        # A call that ends synchronously has already submitted the next one.
        self._pendings.append(self._shared.submit(start, done, next_=True))

    def _stop(self) -> None:
        """Stops a call that does not end."""
        session = self._shared.session
        what = f"its state or render_web takes longer than {STUCK_S:g} s and is stopped"
        logger.error("session %s: %s", session.id, what, extra=log_extra(session.id, session.episode))
        for pending in self._pendings:
            if pending.done is not None:
                self._shared.stop(pending)

    def _note(self, what: str, error: BaseException) -> None:
        if not self._closed:
            self.drawing.notes.append(f"{what}: {error_text(error)}"[:2000].encode("utf-8", "replace").decode())
