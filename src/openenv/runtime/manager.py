"""Opens, counts and closes the sessions of one environment class in one process; awaits their calls."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..batched import Autoreset
from ..errors import Draining, SessionLost, UsageError
from ..recording import DeferredRecords, TapFactory
from ..telemetry.metrics import METER, Gauge, Meter, Phase
from .admission import ConcurrencyGate, Limits, Slots, expired_sessions, sweep_period_s
from .executor import Done
from .loop import InlineExecutor
from .making import EnvironmentMaker
from .process import ProcessPool
from .queue import AdmissionQueue, EndingSessions
from .session import OnLost, OnOpened, Session, SessionState
from .thread import ThreadExecutor

if TYPE_CHECKING:
    from .columns import BatchSpec

logger = logging.getLogger("openenv.sessions")

_STARTED = (SessionState.LIVE, SessionState.EXECUTING)
# Seconds that all environments together have to close when the server stops; it does not wait longer.
SHUTDOWN_S = 5.0
# Seconds between two counts. Counting thousands of sessions takes less than a millisecond.
TICK_S = 0.5
# The published lag of the event loop is the worst of this many counts: Prometheus scrapes every 15 seconds.
LAGS = 30

_BY_STATE = {
    SessionState.STARTING: Gauge.STARTING,
    SessionState.LIVE: Gauge.LIVE,
    SessionState.EXECUTING: Gauge.EXECUTING,
    SessionState.DETACHED: Gauge.DETACHED,
    SessionState.CLOSING: Gauge.CLOSING,
}


class SessionGauges:
    """Publishes the gauges of one manager's sessions: at intervals while there are any, and on request.

    It publishes differences, so that several managers of a process add up.

    Args:
        look: Counts the sessions by state.
        meter: Receives the gauges.
    """

    def __init__(self, look: Callable[[], Mapping[Gauge, int]], meter: Meter = METER):
        self._look = look
        self._meter = meter
        self._published: dict[Gauge, int] = {}
        self._lags: deque[int] = deque(maxlen=LAGS)
        self._loop: asyncio.AbstractEventLoop | None = None
        # Set only while there are sessions.
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts counting. Idempotent."""
        if self._meter.on and (self._timer is None or self._loop is not loop):
            self._loop = loop
            self._arm()

    def end(self) -> None:
        """Stops counting: no session is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._lags.clear()
            self._meter.set(Gauge.LOOP_LAG_NS, 0)
            self.publish()

    def publish(self) -> None:
        """Publishes the current counts."""
        for gauge, count in self._look().items():
            change = count - self._published.get(gauge, 0)
            if change:
                self._meter.add(gauge, change)
                self._published[gauge] = count

    def _arm(self) -> None:
        assert self._loop is not None
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        assert self._loop is not None
        self._lags.append(int((self._loop.time() - self._due) * 1e9))
        self._meter.set(Gauge.LOOP_LAG_NS, max(self._lags))
        self.publish()
        self._arm()


class SessionManager:
    """Opens, counts and closes sessions. Serves one event loop at a time: the one that opens sessions.

    Args:
        factory: Makes one environment: its class, or another callable without arguments.
        limits: The limits of sessions.
        pool: Gives each session its own process; None if the class decides.
        batch: The fields of a `BatchedEnvironment`; None for another class.

    Raises:
        UsageError: The factory's class declares an `execution` that is unknown or unsupported for it.

    Attributes:
        maker: Makes their environments.
        ending: The sessions that are closing.
        deferred_records: Records the calls of recorded sessions.
        gauges: Publishes the number of sessions.
        tap_factory: Makes the taps of recorded sessions; None if recording is off.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        limits: Limits,
        pool: ProcessPool | None = None,
        batch: BatchSpec | None = None,
    ):
        self.limits = limits
        # Limits the calls that execute concurrently; None for no limit.
        self.gate = None if limits.max_executing is None else ConcurrencyGate(limits.max_executing)
        self._admission = AdmissionQueue(limits, self._admit)
        self.maker = EnvironmentMaker(factory, limits, pool, batch)
        self._sessions: dict[str, Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self.ending = EndingSessions(limits, self._admission, self.maker.abandon)
        self.tap_factory: TapFactory | None = None
        self.deferred_records = DeferredRecords()
        self.gauges = SessionGauges(self._count_sessions)

    @property
    def active(self) -> int:
        """The number of sessions in this process that hold a slot, from their constructor to the end of `close`."""
        return len(self._sessions)

    @property
    def held(self) -> int:
        """The number of slots in use in the whole server."""
        return self._admission.slots.held

    @property
    def stuck(self) -> int:
        """The number of unusable slots in the whole server: their sessions ended with a call that does not return."""
        return self._admission.slots.stuck

    @property
    def draining(self) -> bool:
        """Whether the manager opens no more sessions."""
        return self._admission.shut > 0

    @property
    def sessions(self) -> list[Session]:
        """The sessions that hold a slot, oldest first."""
        return list(self._sessions.values())

    def share(self, slots: Slots) -> None:
        """Shares the slots with other processes. Call it before the first session is opened."""
        assert not self._sessions
        self._admission.share(slots)

    def create(
        self,
        opened: OnOpened,
        on_lost: OnLost | None = None,
        session_id: str | None = None,
        holder: int = 0,
        peer: str = "",
    ) -> Session:
        """Makes the record of a session. It holds no resource before it is passed to `open`.

        Args:
            opened: Called once, when the session is open or could not be opened; not called if it is closed first.
                The error is a `ServerFull`, `QueueTimeout`, `Draining`, `FactoryFailed` or
                `ConcurrencyConfigurationError`.
            on_lost: Called with the reason, if its user did not end the session.
            session_id: Its id; None makes a random one.
            holder: Number of the API key that opens it, from 1; 0 for none.
            peer: The address of its client, as text.

        Raises:
            UsageError: A session with that id is open.
        """
        if session_id is None:
            session_id = secrets.token_hex(16)
        elif self.find(session_id) is not None:
            raise UsageError(f"session {session_id!r} is already open: choose another id")
        tap = None if self.tap_factory is None else self.tap_factory(session_id)
        session = Session(session_id, self, opened, on_lost, tap)
        session.holder, session.peer = holder, peer
        return session

    def own_batch(self, session: Session, autoreset: Autoreset) -> None:
        """Makes a new session the owner of a whole batch. Its records are those of as many sessions as episodes.

        Args:
            session: The session, before it is opened.
            autoreset: When an episode that has ended is followed by the next one.
        """
        from .batch_tap import batch_tap_of  # noqa: PLC0415 - only batches need numpy

        assert self.maker.batch is not None
        session.owned_batch = autoreset
        if self.tap_factory is not None:
            session.record_with(batch_tap_of(session.id, self.tap_factory, self.maker.batch, autoreset))

    def find(self, session_id: str) -> Session | None:
        """The session with that id, if it holds a slot or waits for one."""
        return self._sessions.get(session_id) or self._admission.queue.find(session_id)

    def open(self, session: Session, wait_s: float | None = None) -> None:
        """Opens a new session, now or when a slot is free. Calls its `opened`, perhaps before this returns.

        Args:
            session: The session. If its `origin` is set, it begins with the state of the origin's source.
            wait_s: Seconds that it may wait for a slot; by default `queue_timeout_s` of the limits.

        Raises:
            UsageError: Sessions are open on another event loop.
        """
        loop = self.bind()
        self._admission.ask(session, loop, wait_s)
        if self._admission.queue:
            self.gauges.begin(loop)

    def bind(self) -> asyncio.AbstractEventLoop:
        """Moves the sessions to the running event loop, if their former event loop has ended. Returns the loop.

        Raises:
            UsageError: The sessions are used on another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return loop
        if self._loop is not None and self._sessions and not self._loop.is_closed():
            raise UsageError("this app has sessions on another event loop: use one loop, or make one app for each")
        self._loop = loop
        self._sweeper = self._emptied = None
        self.ending.bind(loop)
        self.maker.bind(loop)
        for session in [*self._admission.queue, *self._sessions.values()]:
            # Without its event loop, a session lives on if its environment did not run on that loop.
            if not session.outlives_loop:
                session.close()
            elif session.state in _STARTED and isinstance(session.executor, ThreadExecutor | InlineExecutor):
                session.gone = None
            else:
                ended = f"session {session.id}: the event loop that its environment ran on has ended"
                session.end(SessionLost(f"{ended}: use one loop for all requests (in tests, `with TestClient(app)`)"))
        if self._sessions:
            self.gauges.begin(loop)
            if self.limits.idle_timeout_s is not None:
                self._sweep(self.limits.idle_timeout_s)
        return loop

    def warm(self) -> None:
        """Starts the resources of sessions in advance, so that the first session does not wait for them."""
        if self.maker.pool is not None:
            self.bind()
            self.maker.pool.warm()

    def drain(self) -> None:
        """Stops opening sessions; open sessions continue."""
        self._admission.close()

    async def aclose(self) -> None:
        """Closes every session and waits until their environments are closed, but not for one that hangs."""
        if self._loop is not None and self._loop.is_closed():
            self.bind()
        self._admission.shut += 1
        try:
            ending = Draining("the server is stopping")
            for session in [*self._admission.queue, *self._sessions.values()]:
                session.end(ending)
            if self._sessions:
                self._emptied = self._emptied or asyncio.Event()
                try:
                    await asyncio.wait_for(self._emptied.wait(), SHUTDOWN_S)
                except TimeoutError:
                    names, count = f"{', '.join(self._sessions)!s:.2000}", len(self._sessions)
                    logger.error("the server stops, but environments of %d sessions do not close: %s", count, names)
            if self.maker.pool is not None:
                await self.maker.pool.aclose()
        finally:
            self.gauges.end()
            self._admission.shut -= 1
            if not self._admission.shut:
                self._emptied = None

    # Called by sessions.

    def on_closing(self, session: Session) -> None:
        """The session has begun to close."""
        if self._sessions.get(session.id) is session:
            self._admission.slots.leave()
            self.ending.add(session)
        else:
            self._admission.leave_queue(session)

    def on_gone(self, session: Session) -> None:
        """The session has ended completely, or its remains were abandoned."""
        if session.origin is not None:  # it was closed before its turn came
            origin, session.origin = session.origin, None
            origin.freed()
        # By identity: a session that never held a slot may have the id of another one.
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            self.ending.remove(session)
            self._admission.give_back(session)
        self._admission.admit_waiting()
        if not self._sessions:
            self._rest()

    def on_returned(self, session: Session) -> None:
        """An abandoned call has returned, and its environment is closed."""
        self.ending.returned(session)
        if not self._sessions:
            self._rest()

    def _admit(self, session: Session) -> None:
        """Starts a session that has a slot."""
        self._sessions[session.id] = session
        assert self._loop is not None
        self.gauges.begin(self._loop)
        if METER.on:
            METER.observe(Phase.QUEUE, time.monotonic() - session.created_at)
        if self.limits.idle_timeout_s is not None and self._sweeper is None:
            self._sweep(self.limits.idle_timeout_s)
        self.maker.make(session)

    def _sweep(self, idle_timeout_s: float) -> None:
        for session in expired_sessions(self._sessions.values(), idle_timeout_s, time.monotonic()):
            session.end(SessionLost(f"session {session.id} was idle for {idle_timeout_s:g} s (idle_timeout_s)"))
        if self._sessions:
            self._sweeper = asyncio.get_running_loop().call_later(
                sweep_period_s(idle_timeout_s), self._sweep, idle_timeout_s
            )

    def _count_sessions(self) -> dict[Gauge, int]:
        """Counts the sessions by state."""
        states = Counter(session.state for session in self._sessions.values())
        counts = {gauge: states[state] for state, gauge in _BY_STATE.items()}
        executing, making = self.gate, self.maker.gate
        counts[Gauge.QUEUED] = len(self._admission.queue)
        counts[Gauge.RUNNING] = states[SessionState.EXECUTING] if executing is None else executing.inside
        counts[Gauge.HELD_BACK] = 0 if executing is None else executing.waiting
        counts[Gauge.CONSTRUCTING] = states[SessionState.STARTING] if making is None else making.inside
        return counts

    def _rest(self) -> None:
        """After the last session, frees the timers on the event loop and the threads."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.ending.rest()
        self.maker.rest()
        if not self._admission.queue:
            self.gauges.end()
        if self._emptied is not None:
            self._emptied.set()


@asynccontextmanager
async def opened_session(
    manager: SessionManager, holder: int = 0, peer: str = "", wait_s: float | None = None
) -> AsyncIterator[Session]:
    """A session for the duration of a block. Raises the error of a refusal; always closes the session.

    Args:
        manager: Opens it.
        holder: Number of its API key.
        peer: The address of its client.
        wait_s: Seconds that it may wait for a slot; by default `queue_timeout_s` of the limits.
    """
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    session = manager.create(lambda error: settle(ready, None, error), holder=holder, peer=peer)
    try:
        manager.open(session, wait_s)
        await ready
        yield session
    finally:
        session.close()


async def close_session(session: Session) -> None:
    """Closes a session and waits until it has ended completely."""
    session.close()
    if session.state is not SessionState.GONE:
        session.gone = session.gone or asyncio.Event()
        await session.gone.wait()


async def result_of(call: Callable[[Done], None]) -> Any:
    """Awaits one call: `await result_of(partial(session.reset, arguments))`. Raises the error of the call."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(lambda result, error: settle(future, result, error))
    return await future


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Sets the outcome of a callback on a future."""
    if future.done() or future.get_loop().is_closed():  # the waiting task was cancelled, or its loop has ended
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
