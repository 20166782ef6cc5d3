"""The episode of one session as pages show it: its calls, what is drawn of them, and what they have made of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import Field
from pydantic_core import to_json

from ..errors import OpenEnvError
from ..execution import Done, describe
from ..log_once import warn_once
from ..logs import about
from ..protocol import encode_observation, encode_state
from ..protocol.report import UNSEEDED
from ..sessions import Session
from ..types import BaseMessage
from .drawing import Drawing, draw, read_drawing
from .stay import Ask, Start, Stay

__all__ = ["ActionLog", "Episode", "EpisodeState", "Played"]

logger = logging.getLogger("openenv.server")

# What an answer waits for its pictures.
DRAWING_S = 3.0
# What they may take before they are stopped, and where that cannot be, the session with them.
STUCK_S = 30.0
# Of what is kept of one episode: visitors are many, and observations may be pictures.
MOST_LOGS = 200
LOG_BYTES = 1024 * 1024


class ActionLog(BaseMessage):
    """One action of an episode and what came of it. `timestamp` is ISO 8601, in UTC."""

    timestamp: str
    action: dict[str, Any]
    observation: dict[str, Any]
    reward: bool | int | float | None = None
    done: bool
    step_count: int


class EpisodeState(BaseMessage):
    """What a page shows of an episode."""

    episode_id: str | None = None
    step_count: int = 0
    current_observation: dict[str, Any] | None = None
    action_logs: list[ActionLog] = Field(default_factory=list)
    is_reset: bool = True


class Played(NamedTuple):
    """What came of a reset or step.

    Attributes:
        payload: The observation as v1 sends it.
        state: The environment's state after it; None if it could not be read.
        drawing: What its author shows of it.
        steps: Steps since the last reset.
        duration_s: What the call itself took.
    """

    payload: dict[str, Any]
    state: dict[str, Any] | None
    drawing: Drawing
    steps: int
    duration_s: float


class Episode:
    """Plays in one session, and keeps what a page needs of the episode.

    After each reset and step it reads the state and asks for the drawing, before anybody else's call of the session.
    What fails there is noted, and fails nothing.

    Args:
        stay: The session.
        draws: Whether anybody wants drawings.
        most_logs, most_bytes: What is kept of its actions.

    Attributes:
        steps: Steps since the last reset.
        watchers: Are set when something has changed.
    """

    def __init__(self, stay: Stay, draws: bool = True, most_logs: int = MOST_LOGS, most_bytes: float = LOG_BYTES):
        self.stay = stay
        self.steps = 0
        self.watchers: set[asyncio.Event] = set()
        self._draws = draws
        self._most_logs = most_logs
        self._most_bytes = most_bytes
        self._id: str | None = None
        self._observation: dict[str, Any] | None = None
        self._logs: deque[tuple[ActionLog, int]] = deque()
        self._bytes = 0
        self._is_reset = True

    @classmethod
    def of(cls, stay: Stay) -> Episode:
        """The one of a session that visitors use."""
        if stay.page is None:
            stay.page = cls(stay)
        episode: Episode = stay.page
        return episode

    @property
    def state(self) -> EpisodeState:
        """What there is to show."""
        return EpisodeState(
            episode_id=self._id,
            step_count=self.steps,
            current_observation=self._observation,
            action_logs=[log for log, _ in self._logs],
            is_reset=self._is_reset,
        )

    async def reset(self, arguments: dict[str, Any], timeout_s: float | None = None) -> Played:
        """Starts an episode. Raises what `Stay.call` raises."""

        def begun(encoded: dict[str, Any], size: int) -> None:
            self._logs.clear()
            self._bytes = self.steps = 0
            self._is_reset = True

        def encode(session: Session, observation: Any) -> bytes:
            return encode_observation(observation, notes=None if session.takes_seed_of(arguments) else UNSEEDED)

        return await self._play(lambda session, done: session.reset(arguments, done), encode, begun, timeout_s)

    async def step(
        self, action: Any, arguments: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> Played:
        """Does one action. Raises what `Stay.call` raises."""

        def did(payload: dict[str, Any], size: int) -> None:
            self.steps += 1
            self._is_reset = False
            self._log(action, payload, size)

        def start(session: Session, done: Any) -> None:
            if arguments:
                session.step_with(action, arguments, done)
            else:
                session.step(action, done)

        return await self._play(start, lambda _, observation: encode_observation(observation), did, timeout_s)

    async def _play(
        self,
        start: Start,
        encode: Callable[[Session, Any], bytes],
        happened: Callable[[dict[str, Any], int], None],
        timeout_s: float | None,
    ) -> Played:
        began = time.monotonic()
        aftermath = _Aftermath(self.stay, self._draws)

        def begin(session: Session, done: Any) -> None:
            nonlocal began
            began = time.monotonic()
            start(session, done)

        def ended(observation: Any) -> tuple[dict[str, Any], int, float]:
            took = time.monotonic() - began
            text = encode(self.stay.session, observation)
            payload: dict[str, Any] = json.loads(text)
            happened(payload, len(text))
            self._observation = payload["observation"]
            aftermath.begin(payload)
            return payload, self.steps, took

        payload, steps, took = await self.stay.call(begin, timeout_s, ended)
        await aftermath.wait()
        state = aftermath.state
        told = self.stay.session.episode if state is None else state.get("episode_id")
        self._id = None if told is None else str(told)
        for watcher in self.watchers:
            watcher.set()
        return Played(payload, state, aftermath.drawing, steps, took)

    def _log(self, action: Any, payload: dict[str, Any], size: int) -> None:
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
        self._bytes += size + weight
        while len(self._logs) > 1 and (len(self._logs) > self._most_logs or self._bytes > self._most_bytes):
            self._bytes -= self._logs.popleft()[1]


def _plain(action: Any) -> tuple[dict[str, Any], int]:
    """An action as it is told, and what it weighs."""
    try:
        text = to_json(action, fallback=repr, inf_nan_mode="constants")
        fields = json.loads(text)
    except Exception as error:  # noqa: BLE001 - foreign types; the step is done, whatever can be told of it
        name = type(action).__qualname__
        warn_once(logger, "a %s cannot be written as JSON: the page's log shows none: %s", name, describe(error))
        return {}, 0
    return fields if isinstance(fields, dict) else {"action": fields}, len(text)


class _Aftermath:
    """What is asked of an environment when a call has ended: its state, then its drawing."""

    def __init__(self, stay: Stay, draws: bool):
        self.state: dict[str, Any] | None = None
        self.drawing = Drawing()
        self._stay = stay
        self._draws = draws
        self._payload: dict[str, Any] = {}
        self._asks: list[Ask] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closed = False

    def begin(self, payload: dict[str, Any]) -> None:
        """To be called while the call ends: what it asks comes next."""
        self._payload = payload
        stop = asyncio.get_running_loop().call_later(STUCK_S, self._stop)
        self._over.add_done_callback(lambda _: stop.cancel())
        self._ask_next(Session.read_state, self._stated)

    async def wait(self) -> None:
        """Until all of it is there, or has taken too long for an answer."""
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

    def _drawn(self, told: Any, error: BaseException | None) -> None:
        if inspect.iscoroutine(told):
            told.close()
            error = TypeError(
                "it is asynchronous, which an inline environment cannot wait for: make it a plain method"
            )
        if error is None and not self._closed:
            try:
                drawing = read_drawing(told)
            except ValueError as fault:
                error = fault
            else:
                drawing.notes = [*self.drawing.notes, *drawing.notes]
                self.drawing = drawing
        if error is not None:
            self._note("render_web", error)
        self._over.set_result(None)

    def _ask_next(self, start: Start, done: Done) -> None:
        # One that ends at once has asked for the next one before it stands here itself.
        self._asks.append(self._stay.ask(start, done, next_=True))

    def _stop(self) -> None:
        """It does not end."""
        session = self._stay.session
        what = f"its state or render_web takes longer than {STUCK_S:g} s and is stopped"
        logger.error("session %s: %s", session.id, what, extra=about(session.id, session.episode))
        for ask in self._asks:
            if ask.done is not None:
                self._stay.stop(ask)

    def _note(self, what: str, error: BaseException) -> None:
        if not self._closed:
            self.drawing.notes.append(f"{what}: {describe(error)}"[:2000].encode("utf-8", "replace").decode())
