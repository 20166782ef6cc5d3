"""A session that is used by requests which each stand alone, and by connections that are attached to it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import Cancelled, OpenEnvError, SessionLost, StepTimeout, TooManyCalls, UnknownSession
from ..execution import Done
from ..sessions import Session, SessionState
from ..sessions.life import Life
from ..sessions.waiting import close_session, settle
from .visitor import Visitor

__all__ = ["Ask", "Start", "Stay"]

Start = Callable[[Session, Done], None]
"""Begins one call of a session: `lambda session, done: session.reset({}, done)`."""

# A call that may take longer need not be timed.
LONGEST_S = 86_400.0
# What an environment has to close before whoever closes its session is answered.
CLOSING_S = 5.0
_ENDED = (SessionState.CLOSING, SessionState.GONE)


class Ask:
    """One call, from the moment that somebody asks for it to its answer; it is answered once.

    Args:
        start: Begins it.
        done: Hears of its end; None once it has, or once nobody wants to know.
    """

    __slots__ = ("done", "start")

    def __init__(self, start: Start, done: Done):
        self.start = start
        self.done: Done | None = done

    def answer(self, result: Any, error: BaseException | None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(result, error)


class Stay:
    """One session and those who use it: one call at a time, in the order in which they were asked for.

    Args:
        session: What is used; open.
        max_waiting: Calls that may wait for their turn.
        on_departed: Hears, once, that it has ended.

    Attributes:
        id: Its name.
        token: Lets somebody use it who does not hold the key that it was opened with.
        session: What is used. Whoever is not in a call of its own only looks at it.
        departed: Why it is gone; None while it is there.
        lives: The signs of life of connections that are attached to it.
        on_lost: Hear, each once, that it was ended by somebody other than its user.
        page: What the web UI keeps of its episode (`web_episode.Episode`); None unless it is used there.
    """

    __slots__ = (
        "_advancing",
        "_holder",
        "_line",
        "_max_waiting",
        "_on_departed",
        "_running",
        "departed",
        "id",
        "lives",
        "on_lost",
        "page",
        "session",
        "token",
    )

    def __init__(self, session: Session, max_waiting: int, on_departed: Callable[[Stay], None]):
        self.id = session.id
        self.token = secrets.token_urlsafe(16)
        self.session = session
        self.departed: str | None = None
        self.lives: list[Life] = []
        self.on_lost: list[Callable[[OpenEnvError], None]] = []
        self.page: Any = None
        self._on_departed = on_departed
        self._holder = session.holder
        self._max_waiting = max_waiting
        self._line: deque[Ask] = deque()
        self._running: Ask | None = None
        self._advancing = False

    async def call(
        self, start: Start, timeout_s: float | None = None, encode: Callable[[Any], Any] | None = None
    ) -> Any:
        """Does one call, after those that were asked for before it.

        If the caller is cancelled, the call is stopped where its executor can do that, or never begun; the session
        stays.

        Args:
            start: Begins the call, and gives its `done` on: `lambda session, done: session.step(action, done)`.
            timeout_s: Seconds for it and for those before it; None: without end.
            encode: Makes of its result what is returned, before the next call begins: environments may return one
                and the same object every time, and change it.

        Raises:
            StepTimeout: The time is over. If the call runs on a thread, which cannot be stopped, the session is gone.
            UnknownSession: The session is gone.
            SessionLost: It ends before the call does.
            TooManyCalls: As many as may wait for their turn already (`max_in_flight`).
            UsageError: Another event loop drives the sessions of this server.
            OpenEnvError: What the call itself failed with.
        """
        self.session.bind()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if error is None and encode is not None and not future.done():
                try:
                    result = encode(result)
                except Exception as failure:  # noqa: BLE001 - it reads foreign objects; those behind have their turn
                    self.session.refused(failure)
                    error = failure
            settle(future, result, error)

        ask = self.ask(start, done)
        try:
            await asyncio.wait([future], timeout=timeout_s and min(timeout_s, LONGEST_S))
        except asyncio.CancelledError:
            self.withdraw(ask)
            raise
        if not future.done():
            raise self._expire(ask, timeout_s)
        return future.result()

    def ask(self, start: Start, done: Done, next_: bool = False) -> Ask:
        """The same for callbacks: `done` hears of the call's end, perhaps before this returns.

        Args:
            start: Begins the call.
            done: Hears of its end.
            next_: It comes before all that wait: for what belongs to the call that just ends.
        """
        ask = Ask(start, done)
        if self.ended:
            ask.answer(None, self.gone())
        elif next_:
            self._line.appendleft(ask)
            self._advance()
        elif len(self._line) >= self._max_waiting:
            limit = f"{self._max_waiting} calls of session {self.id} (max_in_flight, OPENENV_MAX_IN_FLIGHT)"
            ask.answer(None, TooManyCalls(f"{limit} wait for their turn: take replies before sending more"))
        else:
            self._line.append(ask)
            self._advance()
        return ask

    def withdraw(self, ask: Ask, stop: bool = True) -> None:
        """Nobody waits for a call any more: if it waits it is not begun, and if it runs it may be stopped."""
        ask.done = None
        if ask is not self._running:
            self._leave_line(ask)
        elif stop:
            self.session.cancel()

    def cancel(self, ask: Ask) -> bool:
        """Stops a call, if its executor can do that (the result); its `done` comes in any case."""
        if ask is self._running:
            return self.session.cancel()
        return self._drop(ask)

    def stop(self, ask: Ask) -> bool:
        """Ends a call whose time is over. False: it runs and cannot be stopped, and the session ends."""
        if ask is not self._running:
            return self._drop(ask)
        if self.session.stop():
            return True
        self.depart("its call gave no answer in time, and a thread cannot be stopped: it was left behind")
        return False

    async def close(self) -> None:
        """Ends the session and waits until its environment is closed, but not for one that hangs. Idempotent."""
        session = self.session
        session.bind()
        self.depart("closed by its client")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await close_session(session)

    def depart(self, why: str) -> None:
        """Ends the session. Those who wait for its calls are told."""
        if self.departed is not None:
            return
        self.departed = why
        self.page = None
        self._on_departed(self)
        self.session.close()
        # Connections first: what they have asked is answered with that.
        listeners, self.on_lost = self.on_lost, []
        for hear in listeners:
            hear(SessionLost(self._farewell()))
        waiting = [*self._line] if self._running is None else [self._running, *self._line]
        self._line.clear()
        for ask in waiting:
            ask.answer(None, SessionLost(self._farewell()))

    def lost(self, error: OpenEnvError) -> None:
        """What the session tells: it ends, and not for its user."""
        self.depart(error.message.removeprefix(f"session {self.id} "))

    @property
    def ended(self) -> bool:
        """Whether it takes no call any more."""
        return self.departed is not None or self.session.state in _ENDED

    def gone(self) -> UnknownSession:
        """The error for whoever asks for it after its end."""
        return UnknownSession(self.id, self._farewell())

    def admits(self, visitor: Visitor, token: str | None) -> bool:
        """Whether somebody may use it: who holds the key that it was opened with, or its token."""
        if token is not None:
            return secrets.compare_digest(self.token.encode(), token.encode("utf-8", "replace"))
        return visitor.holder == self._holder

    def renew(self) -> None:
        """One of its connections came or went: a connection that is there keeps it from being idle."""
        self.session.life = self.lives[-1] if self.lives else None

    def _advance(self) -> None:
        """Begins what waits, until a call stays running."""
        if self._advancing:  # a call that ends before its start returns leads back here and not deeper
            return
        self._advancing = True
        try:
            while self._line and self._running is None:
                ask = self._running = self._line.popleft()
                self._begin(ask)
        finally:
            self._advancing = False

    def _begin(self, ask: Ask) -> None:
        def done(result: Any, error: BaseException | None) -> None:
            if self._running is ask:
                self._running = None
            ask.answer(result, error)
            self._advance()

        try:
            ask.start(self.session, done)
        except Exception as error:  # noqa: BLE001 - whoever asks writes it; those behind must have their turn
            done(None, error)

    def _expire(self, ask: Ask, timeout_s: float | None) -> StepTimeout:
        """The time for a call is over."""
        ask.done = None
        if ask is not self._running:
            self._leave_line(ask)
            waited = f"waited for its turn for all of its {timeout_s:g} s (timeout_s), and was not executed"
            return StepTimeout(f"a call of session {self.id} {waited}")
        late = f"a call of session {self.id} gave no answer within {timeout_s:g} s (timeout_s)"
        ends = self.session.timeout_outcome
        return StepTimeout(f"{late}, {ends}" if self.stop(ask) else f"{late}, {ends}: open another one")

    def _farewell(self) -> str:
        return f"session {self.id} is gone: {self.departed or 'ended'}; open another one (POST /sessions)"

    def _drop(self, ask: Ask) -> bool:
        """Takes a call out of the line and tells whoever asked."""
        self._leave_line(ask)
        ask.answer(None, Cancelled(f"a call of session {self.id} was cancelled, and was not executed"))
        return True

    def _leave_line(self, ask: Ask) -> None:
        with contextlib.suppress(ValueError):
            self._line.remove(ask)
