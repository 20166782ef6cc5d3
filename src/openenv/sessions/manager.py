"""The sessions of one environment class in one process, and the only place that opens them."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import (
    ConcurrencyConfigurationError,
    Draining,
    FactoryFailed,
    OpenEnvError,
    QueueTimeout,
    ServerFull,
    SessionLost,
    UsageError,
)
from ..execution import (
    EnvironmentProfile,
    Execution,
    Executor,
    InlineExecutor,
    LoopExecutor,
    Mailbox,
    ThreadExecutor,
    class_of,
    describe,
    profile_of,
)
from . import lease
from .admission import Counts, Decision, Limits, decide, patience
from .session import Lost, Opened, Session

__all__ = ["SessionManager"]

HELPER_THREADS = 16


class SessionManager:
    """Opens, counts and closes sessions. Serves one event loop at a time: the one that opens sessions.

    Args:
        factory: Makes one environment: its class, or anything else that can be called without arguments.
        limits: How many sessions, and for how long.

    Raises:
        UsageError: The factory's class declares an `execution` that nobody knows.
    """

    def __init__(self, factory: Callable[[], Any], limits: Limits):
        self.factory = factory
        self.limits = limits
        cls = class_of(factory)
        self._profile: EnvironmentProfile | None = None if cls is None else profile_of(cls)
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[str, tuple[Session, asyncio.TimerHandle]] = {}
        self._admitting = False
        self._closing = 0
        self._drains = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailbox: Mailbox | None = None
        self._helpers: ThreadPoolExecutor | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def active(self) -> int:
        """Slots in use: sessions whose environment exists, is being made or being closed."""
        return len(self._sessions)

    @property
    def sessions(self) -> list[Session]:
        """The sessions that hold a slot, oldest first."""
        return list(self._sessions.values())

    @property
    def factory_name(self) -> str:
        """The environment's name, for messages."""
        factory = self.factory
        while isinstance(factory, functools.partial):
            factory = factory.func
        return str(getattr(factory, "__name__", type(factory).__name__))

    def create(self, opened: Opened, on_lost: Lost | None = None) -> Session:
        """Makes the record of a session, which holds nothing before it is passed to `open`.

        Args:
            opened: Hears once whether there is a session; not at all if it is closed first. Its error is
                `ServerFull`, `QueueTimeout`, `Draining`, `FactoryFailed` or `ConcurrencyConfigurationError`.
            on_lost: Hears why, if the session is ended by somebody other than its user.
        """
        return Session(secrets.token_hex(16), self, opened, on_lost)

    def open(self, session: Session) -> None:
        """Opens a new session, now or when a slot is free; it hears the outcome, perhaps before this returns.

        Raises:
            UsageError: The manager serves another event loop, which has sessions open.
        """
        loop = asyncio.get_running_loop()
        self._bind(loop)
        decision = decide(Counts(len(self._sessions), self._closing, len(self._waiting)), self.limits)
        if self._drains:
            session.fail(Draining("the server is stopping: connect to another one"))
        elif decision is Decision.ADMIT:
            self._admit(session)
        elif decision is Decision.WAIT:
            timer = loop.call_later(patience(self.limits), self._give_up, session)
            self._waiting[session.id] = session, timer
        else:
            session.fail(ServerFull(len(self._sessions), self.limits.max_sessions))

    async def aclose(self) -> None:
        """Closes every session and waits until their environments are closed."""
        self._drains += 1
        try:
            ending = Draining("the server is stopping")
            for session in [*(waiting for waiting, _ in self._waiting.values()), *self._sessions.values()]:
                session.end(ending)
            if self._sessions:
                self._emptied = self._emptied or asyncio.Event()
                await self._emptied.wait()
        finally:
            self._drains -= 1
            if not self._drains:
                self._emptied = None

    # What sessions tell their owner.

    def made(self, session: Session, environment: Any, error: BaseException | None) -> None:
        if error is not None:
            name = self.factory_name
            reason = f"{type(error).__name__}: {describe(error)}"
            failure = FactoryFailed(name, f"{name} could not create an environment: {reason}")
            failure.__cause__ = error
            session.fail(failure)
            return
        try:
            profile = self._checked_profile(environment)
        except OpenEnvError as usage:
            session.fail(usage)
            return
        executor = session.executor
        if isinstance(executor, ThreadExecutor) and profile.execution is not Execution.THREAD:
            # Only the instance told what it is: it moves to where its class belongs.
            executor = self._adopt(profile, executor.release())
        assert executor is not None
        session.live(executor, profile)

    def closing(self, session: Session) -> None:
        self._leave_queue(session)
        if session.id in self._sessions:
            self._closing += 1

    def gone(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._closing -= 1
        # A loop and not a recursion: one that is admitted may fail, and be gone, before `_admit` returns.
        if not self._admitting:
            self._admitting = True
            try:
                while self._waiting and len(self._sessions) < self.limits.max_sessions:
                    first, _ = next(iter(self._waiting.values()))
                    self._leave_queue(first)
                    self._admit(first)
            finally:
                self._admitting = False
        if not self._sessions:
            self._rest()

    def _leave_queue(self, session: Session) -> bool:
        place = self._waiting.pop(session.id, None)
        if place is not None:
            place[1].cancel()
        return place is not None

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            return
        if self._loop is not None and self._sessions and not self._loop.is_closed():
            raise UsageError("this app has sessions on another event loop: use one loop, or make one app for each")
        self._loop = loop
        self._sweeper = self._emptied = None
        if self._mailbox is None:
            self._mailbox = Mailbox(loop)
        else:
            self._mailbox.move(loop)
        # What a loop that ended left behind is closed by the next one.
        for session in [*(waiting for waiting, _ in self._waiting.values()), *self._sessions.values()]:
            session.close()

    def _admit(self, session: Session) -> None:
        self._sessions[session.id] = session
        if self.limits.idle_timeout_s is not None and self._sweeper is None:
            self._sweep(self.limits.idle_timeout_s)
        execution = Execution.THREAD if self._profile is None else self._profile.execution
        session.start(self._executor(execution, session), self.factory)

    def _checked_profile(self, environment: object) -> EnvironmentProfile:
        cls = type(environment)
        if not (callable(getattr(cls, "reset", None)) and callable(getattr(cls, "step", None))):
            made = f"{self.factory_name} made a {cls.__name__}, which has no reset and step"
            raise FactoryFailed(self.factory_name, made)
        profile = profile_of(cls)
        if self.limits.max_sessions > 1 and not profile.concurrent:
            raise ConcurrencyConfigurationError(profile.name, self.limits.max_sessions)
        return profile

    def _executor(self, execution: Execution, session: Session) -> Executor:
        if execution is Execution.INLINE:
            return InlineExecutor()
        if execution is Execution.LOOP:
            return LoopExecutor(self._mail(), self._helper_threads())
        return ThreadExecutor(self._mail(), f"openenv-{session.id[:8]}")

    def _adopt(self, profile: EnvironmentProfile, environment: Any) -> Executor:
        if profile.execution is Execution.INLINE:
            return InlineExecutor(environment)
        return LoopExecutor(self._mail(), self._helper_threads(), environment)

    def _mail(self) -> Mailbox:
        assert self._mailbox is not None  # made by `_bind`, before anything is opened
        return self._mailbox

    def _helper_threads(self) -> ThreadPoolExecutor:
        if self._helpers is None:
            self._helpers = ThreadPoolExecutor(HELPER_THREADS, thread_name_prefix="openenv-helper")
        return self._helpers

    def _give_up(self, session: Session) -> None:
        if self._leave_queue(session):
            held, most, waited = len(self._sessions), self.limits.max_sessions, patience(self.limits)
            session.fail(
                QueueTimeout(
                    held,
                    most,
                    f"no session slot came free within {waited:g} s (queue_timeout_s); {most} are in use",
                )
            )

    def _sweep(self, idle_timeout_s: float) -> None:
        for session in lease.expired(self._sessions.values(), idle_timeout_s, time.monotonic()):
            session.end(SessionLost(f"session {session.id} was idle for {idle_timeout_s:g} s (idle_timeout_s)"))
        if self._sessions:
            self._sweeper = asyncio.get_running_loop().call_later(
                lease.period(idle_timeout_s), self._sweep, idle_timeout_s
            )

    def _rest(self) -> None:
        """Without sessions, nothing of the manager is left on the loop or as a thread."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._helpers is not None:
            self._helpers.shutdown(wait=False)
            self._helpers = None
        if self._emptied is not None:
            self._emptied.set()
