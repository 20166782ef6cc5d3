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
    give_way,
    profile_of,
)
from . import lease
from .admission import Counts, Decision, Limits, decide, patience
from .session import Lost, Opened, Session
from .slots import LocalSlots, Slots

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
        self._slots: Slots = LocalSlots(limits.max_sessions)
        cls = class_of(factory)
        self._profile: EnvironmentProfile | None = None if cls is None else profile_of(cls)
        self._sessions: dict[str, Session] = {}
        self._waiting: dict[str, tuple[Session, asyncio.TimerHandle]] = {}
        self._admitting = False
        self._drains = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailbox: Mailbox | None = None
        self._helpers: ThreadPoolExecutor | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def active(self) -> int:
        """Sessions of this process that hold a slot: their environment exists, is being made or being closed."""
        return len(self._sessions)

    @property
    def held(self) -> int:
        """Slots in use in the whole server."""
        return self._slots.held

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

    def share(self, slots: Slots) -> None:
        """Counts sessions in slots that other processes have a part in. To be called before any is open."""
        assert not self._sessions
        self._slots = slots
        slots.on_free = self.admit_waiting

    def create(self, opened: Opened, on_lost: Lost | None = None, session_id: str | None = None) -> Session:
        """Makes the record of a session, which holds nothing before it is passed to `open`.

        Args:
            opened: Hears once whether there is a session; not at all if it is closed first. Its error is
                `ServerFull`, `QueueTimeout`, `Draining`, `FactoryFailed` or `ConcurrencyConfigurationError`.
            on_lost: Hears why, if the session is ended by somebody other than its user.
            session_id: Its name; None makes one up.

        Raises:
            UsageError: A session of that name is open.
        """
        if session_id is None:
            session_id = secrets.token_hex(16)
        elif self.find(session_id) is not None:
            raise UsageError(f"session {session_id!r} is open already: choose another id")
        return Session(session_id, self, opened, on_lost)

    def find(self, session_id: str) -> Session | None:
        """The session of that name, if it holds a slot or waits for one."""
        session = self._sessions.get(session_id)
        if session is None and session_id in self._waiting:
            session = self._waiting[session_id][0]
        return session

    def open(self, session: Session, wait_s: float | None = None) -> None:
        """Opens a new session, now or when a slot is free; it hears the outcome, perhaps before this returns.

        Args:
            wait_s: Seconds that it may wait for a slot; None leaves that to the limits (`queue_timeout_s`).

        Raises:
            UsageError: The manager serves another event loop, which has sessions open.
        """
        loop = asyncio.get_running_loop()
        self._bind(loop)
        if self._drains:
            session.fail(_stopping())
            return
        decision = self._decide(wait_s)
        if decision is Decision.ADMIT:
            self._admit(session)
        elif decision is Decision.WAIT:
            timer = loop.call_later(patience(self.limits, wait_s), self._give_up, session, wait_s)
            self._waiting[session.id] = session, timer
            self._slots.expect(len(self._waiting))
        else:
            session.fail(ServerFull(self._slots.held, self.limits.max_sessions))

    def admit_waiting(self) -> None:
        """Gives free slots to those who wait, first come first served."""
        # A loop and not a recursion: one that is admitted may fail, and be gone, before `_admit` returns.
        if self._admitting:
            return
        self._admitting = True
        try:
            while self._waiting and self._slots.take():
                first, _ = next(iter(self._waiting.values()))
                self._leave_queue(first)
                self._admit(first)
        finally:
            self._admitting = False

    def drain(self) -> None:
        """Opens no further session; those that are open go on."""
        self._drains += 1
        for session, _ in list(self._waiting.values()):
            session.fail(_stopping())

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
            session.fail(self._failure("could not create an environment", error))
            return
        try:
            profile = self._checked_profile(environment)
        except OpenEnvError as usage:
            session.fail(usage)
            return
        except Exception as trouble:  # noqa: BLE001 - the edge to foreign code: a class that will not be looked at
            made = f"made a {type(environment).__name__}, whose methods cannot be read"
            session.fail(self._failure(made, trouble))
            return
        executor = session.executor
        assert executor is not None
        if isinstance(executor, ThreadExecutor) and profile.execution is not Execution.THREAD:
            # Only the instance told what it is: it moves to where its class belongs.
            try:
                executor = self._adopt(profile, executor)
            except RuntimeError as trouble:  # the machine has no thread left to give
                session.fail(self._failure("could not create an environment", trouble))
                return
        session.live(executor, profile)

    def closing(self, session: Session) -> None:
        self._leave_queue(session)
        if self._sessions.get(session.id) is session:
            self._slots.leave()

    def gone(self, session: Session) -> None:
        # By identity: one that never held a slot may bear the name of another.
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            self._slots.give()
        if self._waiting:
            self.admit_waiting()
        if not self._sessions:
            self._rest()

    def _decide(self, wait_s: float | None) -> Decision:
        slots = self._slots
        decision = decide(Counts(slots.held, slots.leaving, len(self._waiting)), self.limits, wait_s)
        if decision is Decision.ADMIT and not slots.take():  # another process was faster
            decision = decide(Counts(slots.limit, slots.leaving, len(self._waiting)), self.limits, wait_s)
        return decision

    def _leave_queue(self, session: Session) -> bool:
        place = self._waiting.get(session.id)
        if place is None or place[0] is not session:
            return False
        place[1].cancel()
        del self._waiting[session.id]
        self._slots.expect(len(self._waiting))
        return True

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
        """Starts a session whose slot was taken."""
        self._sessions[session.id] = session
        if self.limits.idle_timeout_s is not None and self._sweeper is None:
            self._sweep(self.limits.idle_timeout_s)
        execution = Execution.THREAD if self._profile is None else self._profile.execution
        try:
            executor = self._executor(execution, session)
        except RuntimeError as trouble:  # the machine has no thread left to give
            session.fail(self._failure("could not create an environment", trouble))
        else:
            session.start(executor, self.factory)

    def _failure(self, what: str, error: BaseException) -> FactoryFailed:
        name = self.factory_name
        failure = FactoryFailed(name, f"{name} {what}: {type(error).__name__}: {describe(error)}")
        failure.__cause__ = error
        return failure

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

    def _adopt(self, profile: EnvironmentProfile, thread: ThreadExecutor) -> Executor:
        if profile.execution is Execution.INLINE:
            return InlineExecutor(thread.release())
        return LoopExecutor(self._mail(), self._helper_threads(), thread.release())

    def _mail(self) -> Mailbox:
        assert self._mailbox is not None  # made by `_bind`, before anything is opened
        return self._mailbox

    def _helper_threads(self) -> ThreadPoolExecutor:
        if self._helpers is None:
            helpers = ThreadPoolExecutor(HELPER_THREADS, "openenv-helper", initializer=give_way)
            helpers.submit(int)  # so that one thread is there, whatever the machine has to give later
            self._helpers = helpers
        return self._helpers

    def _give_up(self, session: Session, wait_s: float | None) -> None:
        if self._leave_queue(session):
            waited, by = patience(self.limits, wait_s), "queue_timeout_s" if wait_s is None else "wait_s"
            most = self.limits.max_sessions
            reason = f"no session slot came free within {waited:g} s ({by}); {most} are in use: retry later"
            session.fail(QueueTimeout(self._slots.held, most, f"{reason} or raise --max-sessions"))

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


def _stopping() -> Draining:
    return Draining("the server is stopping: connect to another one")
