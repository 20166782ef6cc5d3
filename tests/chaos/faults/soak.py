"""Two thousand sessions that come and go for a while."""

from __future__ import annotations

import statistics
import time

from ..served import Served
from ..trial import Trial, fault

SESSIONS = 2000
WARM_S = 60.0
LOOK_S = 2.0
MB = 2**20
# What an allocator may keep, or a moment's connections take. A circle of objects for each session, which waits for
# the garbage collector, takes 5 MB between the quarters that are compared.
ROOM = {"memory MB": 3.0, "descriptors": 100.0, "threads": 8.0}


@fault(
    "soak at 2,000 sessions with churn",
    "memory, descriptors, threads flat after the first minute",
    peer="not put through it: it takes minutes",
    sessions=SESSIONS,
)
def soak(trial: Trial) -> None:
    began = time.monotonic()
    server = trial.serve("async", workers=2, sessions=4000)
    crowd = trial.crowd(
        server.url, sessions=SESSIONS, vector=1200, connections=8, steps=10, pace_s=1.5, churn=0.5, timeout_s=30.0
    )
    looks: list[tuple[float, dict[str, float]]] = []
    while time.monotonic() - began < trial.soak_s:
        time.sleep(LOOK_S)
        looks.append((time.monotonic() - began, _figures(server)))
    report = crowd.report("stop", 90.0)
    warm = min(WARM_S, trial.soak_s / 2)
    later = [figures for at, figures in looks if at > warm]
    part = max(1, len(later) // 4)
    for name, room in ROOM.items():
        first = statistics.median(figures[name] for figures in later[:part])
        last = statistics.median(figures[name] for figures in later[-part:])
        said = f"{name} {first:.0f} -> {last:.0f}"
        trial.check(last - first <= room + 0.005 * first, said, f"{said}: not flat")
    trial.note("memory by time: " + ", ".join(f"{at:.0f} s {each['memory MB']:.0f}" for at, each in looks[::10]))
    trial.no_errors(report)
    trial.counts(server, report)


def _figures(server: Served) -> dict[str, float]:
    return {
        "memory MB": server.resident_bytes() / MB,
        "descriptors": server.descriptors(),
        "threads": server.threads(),
    }
