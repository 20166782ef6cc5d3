"""Sessions that requests and connections share: opened by one, used by those that name them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Cancelled, OpenEnvError, SessionLost, StepTimeout, TooManyCalls, Unauthorized, UnknownSession
from ..runtime.calls import CallQueue
from ..runtime.executor import Done, Operation
from ..runtime.manager import SessionManager, close_session, settle
from ..runtime.session import LastSeen, OnLost, OnOpened, Session, SessionState
from ..telemetry.logs import log_extra
from .auth import Principal

StartCall = Callable[[Session, Done], None]
"""Begins one call of a session: `lambda session, done: session.reset({}, done)`."""

# A call that may take longer need not be timed.
LONGEST_S = 86_400.0
# What an environment has to close before the request that closes its session is answered.
CLOSING_S = 5.0
_ENDED = (SessionState.CLOSING, SessionState.GONE)


class PendingCall:
    """One call, from its request to its answer; it is answered once.

    Args:
        start: Begins it.
        done: Hears of its end; None after that, and when no caller waits any more.
    """

    __slots__ = ("done", "start")

    def __init__(self, start: StartCall, done: Done):
        self.start = start
        self.done: Done | None = done

    def answer(self, result: Any, error: BaseException | None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(result, error)


class SharedSession(CallQueue[PendingCall]):
    """One session and those who use it: one call at a time, in the order in which they were asked for.

    Args:
        session: What is used; open.
        max_waiting: Calls that may wait for their turn.
        on_departed: Hears, once, that it has ended.

    Attributes:
        id: Its name.
        token: Lets a client use it that does not hold the key that it was opened with.
        session: What is used. Outside of a call, only look at it.
        departed: Why it is gone; None while it is there.
        lives: The signs of life of connections that are attached to it.
        on_lost: Hear, each once, that it was ended by another than its user.
        page: What the web UI keeps of its episode (`page.episode.PageEpisode`); None unless it is used there.
    """

    __slots__ = (
        "_holder",
        "_max_waiting",
        "_on_departed",
        "departed",
        "id",
        "lives",
        "on_lost",
        "page",
        "session",
        "token",
    )

    def __init__(self, session: Session, max_waiting: int, on_departed: Callable[[SharedSession], None]):
        super().__init__()
        self.id = session.id
        self.token = secrets.token_urlsafe(16)
        self.session = session
        self.departed: str | None = None
        self.lives: list[LastSeen] = []
        self.on_lost: list[Callable[[OpenEnvError], None]] = []
        self.page: Any = None
        self._on_departed = on_departed
        self._holder = session.holder
        self._max_waiting = max_waiting

    async def call(
        self, start: StartCall, timeout_s: float | None = None, encode: Callable[[Any], Any] | None = None
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

        pending = self.submit(start, done)
        try:
            await asyncio.wait([future], timeout=timeout_s and min(timeout_s, LONGEST_S))
        except asyncio.CancelledError:
            self.withdraw(pending)
            raise
        if future.done():
            return future.result()
        pending.done = None
        if pending is not self.running:
            self._remove(pending)
            waited = f"waited for its turn for all of its {timeout_s:g} s (timeout_s), and was not executed"
            raise StepTimeout(f"a call of session {self.id} {waited}")
        late = f"a call of session {self.id} gave no answer within {timeout_s:g} s (timeout_s)"
        late = f"{late}, {self.session.timeout_outcome}"
        raise StepTimeout(late if self.stop(pending) else f"{late}: open another one")

    def submit(self, start: StartCall, done: Done, next_: bool = False) -> PendingCall:
        """The same for callbacks: `done` hears of the call's end, perhaps before this returns.

        Args:
            start: Begins the call.
            done: Hears of its end.
            next_: It comes before all that wait: for what belongs to the call that just ends.
        """
        pending = PendingCall(start, done)
        if self.ended:
            pending.answer(None, self.gone())
        elif next_:
            self._wait(pending, first=True)
        elif len(self._waiting) >= self._max_waiting:
            limit = f"{self._max_waiting} calls of session {self.id} (max_in_flight, OPENENV_MAX_IN_FLIGHT)"
            pending.answer(None, TooManyCalls(f"{limit} wait for their turn: take replies before sending more"))
        else:
            self._wait(pending)
        return pending

    def withdraw(self, pending: PendingCall, stop: bool = True) -> None:
        """Gives up a call: one that waits is not begun, and one that runs may be stopped."""
        pending.done = None
        if pending is not self.running:
            self._remove(pending)
        elif stop:
            self.session.cancel()

    def stop(self, pending: PendingCall) -> bool:
        """Ends a call at its deadline. False: it runs and cannot be stopped, and the session ends."""
        if pending is not self.running:
            self._remove(pending)
            pending.answer(None, Cancelled(f"a call of session {self.id} was cancelled, and was not executed"))
            return True
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
        """Ends the session, and answers its calls with the reason."""
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
        calls = self._unfinished()
        self._waiting = ()
        for pending in calls:
            pending.answer(None, SessionLost(self._farewell()))

    def lost(self, error: OpenEnvError) -> None:
        """What the session tells: it ends, and not for its user."""
        self.depart(error.message.removeprefix(f"session {self.id} "))

    @property
    def ended(self) -> bool:
        """Whether it takes no call any more."""
        return self.departed is not None or self.session.state in _ENDED

    def gone(self) -> UnknownSession:
        """The error for calls after its end."""
        return UnknownSession(self.id, self._farewell())

    def admits(self, principal: Principal, token: str | None) -> bool:
        """Whether a client may use it: with the key that it was opened with, or its token."""
        if token is not None:
            return secrets.compare_digest(self.token.encode(), token.encode("utf-8", "replace"))
        return principal.holder == self._holder

    def renew(self) -> None:
        """One of its connections came or went: a connection that is there keeps it from being idle."""
        self.session.life = self.lives[-1] if self.lives else None

    def _begin(self, pending: PendingCall) -> None:
        def done(result: Any, error: BaseException | None) -> None:
            if self.running is pending:
                self.running = None
            pending.answer(result, error)
            if self._waiting:
                self._advance()

        try:
            pending.start(self.session, done)
        except Exception as error:  # noqa: BLE001 - the caller writes it; the calls behind must have their turn
            done(None, error)

    def _farewell(self) -> str:
        return f"session {self.id} is gone: {self.departed or 'ended'}; open another one (POST /sessions)"


logger = logging.getLogger("openenv.server")

# Sessions that ended and are known by name: so that closing one twice is no error, and others hear why it ended.
MOST_DEPARTED = 10_000


def worker_of(session_id: str) -> str | None:
    """The worker process that the id of such a session names; None if it names none."""
    worker, dot, _ = session_id.partition(".")
    return worker if dot and is_worker_key(worker) else None


def is_worker_key(text: str) -> bool:
    """Whether a text can be the key of a worker process, which may have ended."""
    try:
        return int(text, 16) > 0
    except ValueError:
        return False


class SharedSessions:
    """The sessions of one server that are used over HTTP.

    They end when they are closed, when they were idle for `idle_timeout_s`, and with the server.

    Args:
        manager: Where they are opened.
        worker: What this process is called by clients that must reach it again; None if there is one alone.
        max_waiting: Calls of one session that may wait for their turn.
    """

    def __init__(self, manager: SessionManager, worker: Callable[[], str | None], max_waiting: int):
        self._manager = manager
        self._worker = worker
        self._max_waiting = max_waiting
        self._sessions: dict[str, SharedSession] = {}
        self._departed: deque[str] = deque()

    async def open(self, principal: Principal) -> SharedSession:
        """Opens a session, which belongs to the holder of the visitor's key.

        Raises:
            CapacityError: There is no slot (`ServerFull`, `QueueTimeout`), or the server stops (`Draining`).
            EnvironmentFailed: The environment could not be made.
            UsageError: The server has sessions on another event loop.
        """
        worker = self._worker()
        name = secrets.token_hex(16)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        session = self._manager.create(
            lambda error: settle(ready, None, error),
            session_id=name if worker is None else f"{worker}.{name}",
            holder=principal.holder,
            peer=principal.peer,
            on_lost=lambda error: shared.lost(error),  # noqa: PLW0108 - it is made below
        )
        session.outlives_loop = True
        shared = SharedSession(session, self._max_waiting, self._forget_later)
        try:
            self._manager.open(session)
            await ready
        except BaseException:
            session.close()
            raise
        self._sessions[shared.id] = shared
        return shared

    def find(self, session_id: str, principal: Principal, token: str | None = None) -> SharedSession:
        """The session of that name.

        Args:
            session_id: Its name.
            principal: Who asks.
            token: Lets a client use it that holds another key.

        Raises:
            UnknownSession: There is none, or none any more; its message says why, if that is known.
            Unauthorized: It belongs to another key, or the token is not its own.
        """
        shared = self.look_up(session_id, principal, token)
        if shared.ended:
            raise shared.gone()
        return shared

    def look_up(self, session_id: str, principal: Principal, token: str | None = None) -> SharedSession:
        """The same, also for one that has ended not long ago."""
        shared = self._sessions.get(session_id)
        if shared is None:
            advice = "open one with POST /sessions; a session ends with the worker process that it was opened in"
            raise UnknownSession(session_id, f"no session {session_id[:80]!r} on this server: {advice}")
        if not shared.admits(principal, token):
            raise Unauthorized(f"session {session_id} was opened with another key: show that one, or its token")
        return shared

    def _forget_later(self, shared: SharedSession) -> None:
        """Only so many that have ended are remembered."""
        session = shared.session
        logger.info("session %s: %s", shared.id, shared.departed, extra=log_extra(shared.id, session.episode))
        self._departed.append(shared.id)
        if len(self._departed) > MOST_DEPARTED:
            self._sessions.pop(self._departed.popleft(), None)


class AttachedSession:
    """What a connection of v1 uses as if it were a `Session` of its own (`/ws?session_id=...`).

    Args:
        sessions: Where the session is that it is attached to.
        principal: Who wants it, and what it is called.
        opened: Hears whether it is there.
        on_lost: Hears why, if it is ended by another client or the server.

    Attributes:
        life: The sign of life of the connection.
        holder, peer: The client of the connection.
        gone: Is never needed: it is gone as soon as it leaves.
    """

    life: LastSeen
    holder: int
    peer: str

    def __init__(self, sessions: SharedSessions, principal: Principal, opened: OnOpened, on_lost: OnLost):
        self.id = principal.session or ""
        self.gone: asyncio.Event | None = None
        self._sessions = sessions
        self._principal = principal
        self._opened = opened
        self._on_lost = on_lost
        self._shared: SharedSession | None = None
        self._pending: PendingCall | None = None

    @property
    def state(self) -> SessionState:
        return SessionState.GONE if self._shared is None else self._shared.session.state

    @property
    def episode(self) -> str | None:
        return None if self._shared is None else self._shared.session.episode

    def enter(self) -> None:
        """Attaches it, or says why it cannot be."""
        try:
            shared = self._sessions.find(self.id, self._principal, self._principal.token)
            shared.session.bind()
            if shared.ended:
                raise shared.gone()
        except OpenEnvError as error:
            self._opened(error)
            return
        self._shared = shared
        shared.lives.append(self.life)
        shared.renew()
        shared.on_lost.append(self._lost)
        self._opened(None)

    # What a connection does with its session. One call at a time: the next one after `done`.

    def takes_seed_of(self, arguments: Mapping[str, Any]) -> bool:
        return self._shared is None or self._shared.session.takes_seed_of(arguments)

    def reset(self, arguments: dict[str, Any], done: Done) -> None:
        self._do(lambda session, answer: session.reset(arguments, answer), done)

    def step(self, action: Any, done: Done) -> None:
        self._do(lambda session, answer: session.step(action, answer), done)

    def read_state(self, done: Done) -> None:
        self._do(Session.read_state, done)

    def call(self, operation: Operation, argument: Any, done: Done) -> None:
        self._do(lambda session, answer: session.call(operation, argument, answer), done)

    def refused(self, error: Exception) -> None:
        """The result of its call cannot be sent, as `Session.refused`."""
        if self._shared is not None:
            self._shared.session.refused(error)

    def close(self) -> None:
        """Leaves. A call of its own that runs goes on, and one that waits is not begun."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._pending is not None:
            shared.withdraw(self._pending, stop=False)
        shared.lives.remove(self.life)
        shared.renew()
        if self._lost in shared.on_lost:
            shared.on_lost.remove(self._lost)

    def _do(self, start: StartCall, done: Done) -> None:
        if self._shared is None:
            return  # it has left

        def answered(result: Any, error: BaseException | None) -> None:
            self._pending = None
            done(result, error)

        pending = self._shared.submit(start, answered)
        self._pending = None if pending.done is None else pending

    def _lost(self, error: OpenEnvError) -> None:
        self._on_lost(error)
