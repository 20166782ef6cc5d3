"""Gauges of a manager's sessions, published for metrics."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from ..telemetry.metrics import METER, Gauge, Meter
from .admission import ConcurrencyGate
from .session import Session, SessionState

# Between two looks. Thousands of sessions are counted in less than a millisecond.
TICK_S = 0.5
# Looks that the lag of the event loop is the worst of: Prometheus comes by every 15 seconds.
LAGS = 30

_BY_STATE = {
    SessionState.STARTING: Gauge.STARTING,
    SessionState.LIVE: Gauge.LIVE,
    SessionState.EXECUTING: Gauge.EXECUTING,
    SessionState.DETACHED: Gauge.DETACHED,
    SessionState.CLOSING: Gauge.CLOSING,
}


def count_sessions(
    sessions: Iterable[Session], queued: int, executing: ConcurrencyGate | None, making: ConcurrencyGate | None
) -> dict[Gauge, int]:
    """What there is.

    Args:
        sessions: Those that hold a slot.
        queued: How many more wait for one.
        executing: What lets calls execute; None lets all.
        making: What lets environments be made; None lets all.
    """
    states = Counter(session.state for session in sessions)
    counts = {gauge: states[state] for state, gauge in _BY_STATE.items()}
    counts[Gauge.QUEUED] = queued
    counts[Gauge.RUNNING] = states[SessionState.EXECUTING] if executing is None else executing.inside
    counts[Gauge.HELD_BACK] = 0 if executing is None else executing.waiting
    counts[Gauge.CONSTRUCTING] = states[SessionState.STARTING] if making is None else making.inside
    return counts


class SessionGauges:
    """Publishes the gauges of one manager's sessions: now and then while there are any, and when it is asked to.

    Each time by what has changed, so that several managers of a process add up.

    Args:
        look: Counts what there is.
        meter: Where it is published.
    """

    def __init__(self, look: Callable[[], Mapping[Gauge, int]], meter: Meter = METER):
        self._look = look
        self._meter = meter
        self._published: dict[Gauge, int] = {}
        self._lags: deque[int] = deque(maxlen=LAGS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def ticking(self) -> bool:
        """Whether a timer is set: only while there is something to count."""
        return self._timer is not None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """There is something to count from here on. May be called repeatedly."""
        if self._meter.on and (self._timer is None or self._loop is not loop):
            self._loop = loop
            self._arm()

    def end(self) -> None:
        """There is nothing left to count."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._lags.clear()
            self._meter.set(Gauge.LOOP_LAG_NS, 0)
            self.publish()

    def publish(self) -> None:
        """Says what there is now."""
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
