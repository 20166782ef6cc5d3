"""Made-up measurements."""

from __future__ import annotations

from benchmarks.games import DemoWorkload, EpisodeRow
from openenv.bench.batch import Mode, RequestRow, summarize
from openenv.bench.steps import StepCost

__all__ = ["cost", "failed", "good", "play", "summary", "workload"]


def good(number=0, total=0.6, wait=0.5, size=10):
    """A request that took `total` seconds: a sixth to connect, a sixth for the reset, the rest for the step."""
    return RequestRow(
        request_id=number,
        mode=Mode.WS,
        timestamp=1_700_000_000.0 + number,
        wait_requested=wait,
        batch_size=size,
        connect_latency=total / 6,
        reset_latency=total / 6,
        step_latency=total * 4 / 6,
        total_latency=total,
        waited_seconds=wait,
        pid=100 + number % 2,
        session_hash=f"{number:016x}",
        host_url="here",
        success=True,
    )


def failed(number=0, error=None, wait=0.5, size=10):
    """A request that connected and then failed."""
    row = RequestRow(number, Mode.WS, 1_700_000_000.0, wait, size, connect_latency=9.0)
    row.fail(error or ConnectionError("the line went dead"))
    return row


def summary(size, successful=None, wait=1.0, repetition=1, total=1.5):
    """A batch of `size` requests, of which `successful` succeeded."""
    successful = size if successful is None else successful
    rows = [good(number, total, wait, size) for number in range(successful)]
    rows += [failed(number, wait=wait, size=size) for number in range(successful, size)]
    return summarize(rows, wall_s=2.0, repetition=repetition)


def play(number=0, rewards=(1.0, 1.0, 1.0), workload="CartPole-v1"):
    """An episode that went well."""
    row = EpisodeRow(
        number,
        Mode.WS,
        1_700_000_000.0,
        None,
        4,
        connect_latency=0.01 if number < 4 else None,
        reset_latency=0.002,
        step_latency=0.003,
        total_latency=0.002 + 0.003 * len(rewards),
        success=True,
    )
    row.workload, row.session, row.seed = workload, number % 4, number
    row.steps, row.episode_return = len(rewards), sum(rewards)
    row.step_latencies = [0.003] * len(rewards)
    return row


def workload(name="CartPole-v1", rows=None):
    rows = [play(number, (1.0,) * (1 + number % 9), name) for number in range(20)] if rows is None else rows
    return DemoWorkload(name, 4, 0.5, 48 * 1024.0, rows, spans=[(float(n) / 10, 1.0 + n / 5) for n in range(4)])


def cost(**figures):
    """A trial of a closed loop."""
    trial = {
        "sessions": 64,
        "failed": 0,
        "errors": {},
        "steps": 100_000,
        "resets": 0,
        "seconds": 5.0,
        "steps_per_second": 20_000.0,
        "p50": 0.0031,
        "p99": 0.0124,
        "server_us_per_step": 13.26,
        "client_us_per_step": 22.0,
        "kib_per_session": 14.5,
    }
    return StepCost(**trial | figures)
