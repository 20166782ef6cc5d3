"""Sessions that several requests and connections share: one request opens a session, others refer to it by id."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

# A longer time limit needs no timer.
LONGEST_S = 86_400.0
# Seconds that an environment has to close before the request to close its session is answered.
CLOSING_S = 5.0
_ENDED = (SessionState.CLOSING, SessionState.GONE)


@dataclass(slots=True, eq=False, repr=False)
class PendingCall:
    """One call, from its request to its answer; it is answered once.

    Attributes:
        start: Begins it.
        done: Called at its end; None after that, and when no caller waits for it.
    """

    start: StartCall
    done: Done | None

    def answer(self, result: Any, error: BaseException | None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(result, error)


@dataclass(slots=True, eq=False, repr=False)
class SharedSession(CallQueue[PendingCall]):
    """One session with several users: one call at a time, in the order of the requests.

    Attributes:
        session: The open session. Outside of a call, only read it.
        max_waiting: Calls that may wait for their turn.
        on_departed: Called once, when it has ended.
        id: Its id.
        token: Lets a client use the session without the key that opened it.
        departed: The reason of its end; None while it is open.
        lives: When each attached connection last sent something.
        on_lost: Called once each, if another client or the server ended it.
        page: The episode for the web UI (`page.episode.PageEpisode`); None unless the UI uses the session.
    """

    session: Session
    max_waiting: int
    on_departed: Callable[[SharedSession], None]
    id: str = field(init=False)
    token: str = field(init=False)
    departed: str | None = None
    lives: list[LastSeen] = field(default_factory=list)
    on_lost: list[Callable[[OpenEnvError], None]] = field(default_factory=list)
    page: Any = None

    def __post_init__(self) -> None:
        self.id = self.session.id
        self.token = secrets.token_urlsafe(16)

    async def call(
        self, start: StartCall, timeout_s: float | None = None, encode: Callable[[Any], Any] | None = None
    ) -> Any:
        """Executes one call, after all earlier calls.

        If the caller is cancelled, a waiting call never begins, and a running call is stopped if its executor can do
        that; the session stays.

        Args:
            start: Begins the call and passes `done` on: `lambda session, done: session.step(action, done)`.
            timeout_s: Seconds for the call and for those before it; None: no limit.
            encode: Turns the result into the return value, before the next call begins: environments may return the
                same object every time, and change it.

        Raises:
            StepTimeout: The time has passed. If the call runs on a thread, which cannot be stopped, the session ends.
            UnknownSession: The session is gone.
            SessionLost: The session ends before the call does.
            TooManyCalls: The limit of waiting calls is reached (`max_in_flight`).
            UsageError: Another event loop drives the sessions of this server.
            OpenEnvError: The error of the call itself.
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
        raise StepTimeout(late if self.stop(pending) else f"{late}: open another session")

    def submit(self, start: StartCall, done: Done, next_: bool = False) -> PendingCall:
        """Like `call`, with a callback: `done` is called at the end of the call, perhaps before this returns.

        Args:
            start: Begins the call.
            done: Called at its end.
            next_: Puts it before all waiting calls: for a continuation of the call that is ending.
        """
        pending = PendingCall(start, done)
        if self.ended:
            pending.answer(None, self.gone())
        elif next_:
            self._wait(pending, first=True)
        elif len(self._waiting) >= self.max_waiting:
            limit = f"{self.max_waiting} calls of session {self.id} (max_in_flight, OPENENV_MAX_IN_FLIGHT)"
            pending.answer(None, TooManyCalls(f"{limit} wait for their turn: receive replies before sending more"))
        else:
            self._wait(pending)
        return pending

    def withdraw(self, pending: PendingCall, stop: bool = True) -> None:
        """Cancels a call: a waiting call never begins, and a running call may be stopped."""
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
        self.on_departed(self)
        self.session.close()
        # Connections first: their calls are answered with that error.
        listeners, self.on_lost = self.on_lost, []
        for hear in listeners:
            hear(SessionLost(self._farewell()))
        calls = self._unfinished()
        self._waiting = ()
        for pending in calls:
            pending.answer(None, SessionLost(self._farewell()))

    def lost(self, error: OpenEnvError) -> None:
        """The callback of the session: it ended, and not because of its user."""
        self.depart(error.message.removeprefix(f"session {self.id} "))

    @property
    def ended(self) -> bool:
        """Whether it no longer accepts calls."""
        return self.departed is not None or self.session.state in _ENDED

    def gone(self) -> UnknownSession:
        """The error for calls after its end."""
        return UnknownSession(self.id, self._farewell())

    def admits(self, principal: Principal, token: str | None) -> bool:
        """Whether a client may use it: it needs the key that opened it, or its token."""
        if token is not None:
            return secrets.compare_digest(self.token.encode(), token.encode("utf-8", "replace"))
        return principal.holder == self.session.holder

    def renew(self) -> None:
        """A connection was attached or detached: a session with an attached connection is not idle."""
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

# Names of ended sessions that are kept: such a session may be closed twice, and clients get the reason of its end.
MOST_DEPARTED = 10_000


def worker_of(session_id: str) -> str | None:
    """The worker process that the id of a shared session names; None if it names none."""
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

    They end when a client closes them, after `idle_timeout_s` without a call, and with the server.

    Args:
        manager: Opens them.
        worker: The name of this process for clients that must reach it again; None if it is the only one.
        max_waiting: Calls of one session that may wait for their turn.
    """

    def __init__(self, manager: SessionManager, worker: Callable[[], str | None], max_waiting: int):
        self._manager = manager
        self._worker = worker
        self._max_waiting = max_waiting
        self._sessions: dict[str, SharedSession] = {}
        self._departed: deque[str] = deque()

    async def open(self, principal: Principal) -> SharedSession:
        """Opens a session. It belongs to the key of the client.

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
        """The session with that id.

        Args:
            session_id: Its id.
            principal: The client that asks.
            token: Lets a client with another key use it.

        Raises:
            UnknownSession: There is no such session, or it has ended; the message gives the reason, if known.
            Unauthorized: It belongs to another key, or the token is wrong.
        """
        shared = self.look_up(session_id, principal, token)
        if shared.ended:
            raise shared.gone()
        return shared

    def look_up(self, session_id: str, principal: Principal, token: str | None = None) -> SharedSession:
        """Like `find`, but also returns a session that ended recently."""
        shared = self._sessions.get(session_id)
        if shared is None:
            advice = "open one with POST /sessions; a session ends with the worker process that it was opened in"
            raise UnknownSession(session_id, f"no session {session_id[:80]!r} on this server: {advice}")
        if not shared.admits(principal, token):
            raise Unauthorized(f"session {session_id} was opened with another key: send that key, or its token")
        return shared

    def _forget_later(self, shared: SharedSession) -> None:
        """Forgets the oldest ended sessions above the limit."""
        session = shared.session
        logger.info("session %s: %s", shared.id, shared.departed, extra=log_extra(shared.id, session.episode))
        self._departed.append(shared.id)
        if len(self._departed) > MOST_DEPARTED:
            self._sessions.pop(self._departed.popleft(), None)


class AttachedSession:
    """Lets a v1 connection use a shared session like its own `Session` (`/ws?session_id=...`).

    Args:
        sessions: The shared sessions.
        principal: The client, and the id of the session that it asks for.
        opened: Called when the session was found, or with the error.
        on_lost: Called with the reason if another client or the server ends the session.

    Attributes:
        life: When the connection last sent something.
        holder, peer: The client of the connection.
    """

    life: LastSeen
    holder: int
    peer: str

    def __init__(self, sessions: SharedSessions, principal: Principal, opened: OnOpened, on_lost: OnLost):
        self.id = principal.session or ""
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
        """Attaches the connection, or reports why it cannot."""
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
        shared.on_lost.append(self._on_lost)
        self._opened(None)

    # The calls of a connection on its session. One at a time: the next one after `done`.

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
        """The result of its call cannot be sent (see `Session.refused`)."""
        if self._shared is not None:
            self._shared.session.refused(error)

    def close(self) -> None:
        """Detaches. Its running call continues, and its waiting call never begins."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._pending is not None:
            shared.withdraw(self._pending, stop=False)
        shared.lives.remove(self.life)
        shared.renew()
        if self._on_lost in shared.on_lost:
            shared.on_lost.remove(self._on_lost)

    def _do(self, start: StartCall, done: Done) -> None:
        if self._shared is None:
            return  # it has detached

        def answered(result: Any, error: BaseException | None) -> None:
            self._pending = None
            done(result, error)

        pending = self._shared.submit(start, answered)
        self._pending = None if pending.done is None else pending
