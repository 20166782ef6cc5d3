"""`GET /metrics`: the counts of all processes of a server in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import __version__
from .._http import SCOPE_HEADER
from ..telemetry.metrics import BUCKET_BOUNDS, METER, Count, Gauge, Phase, Reading, total
from .middleware import principal_of

if TYPE_CHECKING:
    from .server import EnvironmentServer

_OFF = "this server keeps no metrics: it was started with --no-metrics or OPENENV_METRICS=false"
_STATES = (Gauge.STARTING, Gauge.LIVE, Gauge.EXECUTING, Gauge.DETACHED, Gauge.CLOSING)
_GAUGES: tuple[tuple[Gauge, str, str], ...] = (
    (Gauge.QUEUED, "queue_length", "New sessions that wait for a slot"),
    (Gauge.RUNNING, "calls_executing", "Calls that environments execute"),
    (Gauge.HELD_BACK, "calls_waiting", "Calls that wait because max_executing others execute"),
    (Gauge.CONSTRUCTING, "environments_constructing", "Environments that are being made"),
    (Gauge.CONNECTIONS, "connections", "Open connections of clients"),
    (Gauge.STUCK_THREADS, "stuck_threads", "Calls that were given up and have not returned"),
    (Gauge.RECORDING_STOPPED, "recording_stopped", "Processes that stopped recording because a disk is full"),
)
_RECORDS: tuple[tuple[Count, str, str], ...] = (
    (Count.RECORDS, "records", "Transitions that were recorded"),
    (Count.RECORD_BYTES, "record_bytes", "Bytes of recorded transitions"),
    (Count.RECORDS_DROPPED, "records_dropped", "Transitions that could not be recorded"),
)


async def metrics(request: Request) -> Response:
    """The metrics of this server, for Prometheus."""
    server: EnvironmentServer = request.app.state.openenv
    if not server.settings.metrics:
        raise HTTPException(404, _OFF)
    manager = server.manager
    manager.gauges.publish()
    text = exposition(METER.readings(), manager.held, manager.limits.max_sessions)
    # `openenv top` asks for sessions only with a key that permits it.
    headers = {SCOPE_HEADER: principal_of(request.scope, server).scope}
    return Response(text, headers=headers, media_type=CONTENT_TYPE_LATEST)


def exposition(readings: list[Reading], held: int, limit: int) -> bytes:
    """The numbers of all processes of a server in Prometheus' text format.

    Args:
        readings: The metrics of each process.
        held, limit: The slots in use, and all slots.
    """
    return generate_latest(_Collector(readings, held, limit))


class _Collector(Collector):
    def __init__(self, readings: list[Reading], held: int, limit: int):
        self._readings = readings
        self._held = held
        self._limit = limit

    def collect(self) -> Iterator[Metric]:
        workers = [reading for reading in self._readings if reading.pid]
        counts = total(self._readings)
        build = GaugeMetricFamily("openenv_build_info", "The version that serves", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily("openenv_workers", "Processes that serve", len(workers))
        restarts = counts.value(Count.WORKER_RESTARTS)
        yield CounterMetricFamily("openenv_worker_restarts", "Workers that were started for one that died", restarts)
        sessions = GaugeMetricFamily("openenv_sessions", "Sessions that hold a slot, by state", labels=["state"])
        for state in _STATES:
            sessions.add_metric([state.value], counts.value(state))
        yield sessions
        yield GaugeMetricFamily("openenv_slots_held", "Slots taken by sessions", self._held)
        yield GaugeMetricFamily("openenv_slots_limit", "Most sessions at one time (max_sessions)", self._limit)
        for gauge, name, explanation in _GAUGES:
            yield GaugeMetricFamily(f"openenv_{name}", explanation, counts.value(gauge))
        timed = "Time spent in each phase; serialize and send are sampled"
        phases = HistogramMetricFamily("openenv_phase_seconds", timed, labels=["phase"])
        for phase in Phase:
            found = counts.histogram(phase)
            # Prometheus buckets are cumulative: each includes the counts of the ones before it.
            bounds = [*map(repr, BUCKET_BOUNDS), "+Inf"]
            buckets = list(zip(bounds, accumulate(found.counts), strict=True))
            phases.add_metric([phase.value], buckets, found.seconds)
        yield phases
        errors = CounterMetricFamily("openenv_errors", "Errors that clients received", labels=["error", "blame"])
        for (error, blame), count in counts.errors().items():
            errors.add_metric([error.__name__, blame], count)
        yield errors
        for record, name, explanation in _RECORDS:
            yield CounterMetricFamily(f"openenv_{name}", explanation, counts.value(record))
        late = "Longest that a timer was late in the last 15 seconds, by process"
        lags = GaugeMetricFamily("openenv_event_loop_lag_seconds", late, labels=["worker", "pid"])
        for worker in workers:
            lags.add_metric([worker.worker, str(worker.pid)], worker.value(Gauge.LOOP_LAG_NS) / 1e9)
        yield lags
