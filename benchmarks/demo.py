"""The demo: many sessions of the benchmark environment, then episodes of games of Gymnasium."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from openenv._plots import require_matplotlib
from openenv._processes import raise_file_limit
from openenv.bench.batch import Mode, RequestBatch, run_batch
from openenv.bench.load import LoadCounts, check_share
from openenv.bench.served import ServedTarget
from openenv.errors import MissingExtra

from .demo_report import write_demo
from .games import DemoWorkload, EpisodeRow, Games, play_games

WAIT_S = 1.0
TIMEOUT_S = 60.0
# Registered name and number of actions.
GAMES = {"CartPole-v1": 2, "Blackjack-v1": 2}
# Room for sessions whose close is still under way.
SPARE_SESSIONS = 64


@dataclass(frozen=True, slots=True)
class Demo:
    """Sizes of the demo.

    Attributes:
        sessions: Concurrent sessions of the benchmark environment.
        episodes: Episodes of each game.
        concurrency: Sessions that play a game concurrently.
        output_dir: Folder for the results.
    """

    sessions: int
    episodes: int
    concurrency: int
    output_dir: Path


def check_demo(demo: Demo) -> None:
    """Checks that the demo can run here, before it starts a server.

    Raises:
        MissingExtra: A package of the demo is not installed.
        UsageError: The demo has more sessions than the load can open.
    """
    require_matplotlib()
    try:
        import gymnasium  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("gymnasium", "gymnasium") from None
    for sessions in (demo.sessions, demo.concurrency, demo.episodes):
        check_share(sessions, 1, raise_file_limit())


def run_demo(
    demo: Demo,
    stage: Callable[[str], None] = lambda text: None,
    progress: Callable[[str, int, LoadCounts], None] = lambda workload, total, counts: None,
) -> list[DemoWorkload]:
    """Runs all workloads and writes `raw.jsonl`, `summary.csv` and `report.html`.

    Args:
        demo: Sizes that `check_demo` has accepted.
        stage: Called with a sentence when a new stage begins.
        progress: Called about ten times a second with the workload, its number of requests, and its progress.

    Returns:
        The results of each workload, in their order.
    """
    demo.output_dir.mkdir(parents=True, exist_ok=True)
    workloads = [_benchmark(demo, stage, progress)]
    workloads += [_game(demo, env_id, actions, stage, progress) for env_id, actions in GAMES.items()]
    stage("writing the report")
    write_demo(demo.output_dir, workloads)
    return workloads


def _benchmark(
    demo: Demo, stage: Callable[[str], None], progress: Callable[[str, int, LoadCounts], None]
) -> DemoWorkload:
    name, workers = "benchmark", os.cpu_count() or 1
    stage(f"serving {name} with {workers} worker{'s' if workers > 1 else ''}")
    with ServedTarget(name, workers, max_sessions=demo.sessions + SPARE_SESSIONS) as server:
        memory = _Memory(server)

        def report(counts: LoadCounts) -> None:
            memory.sample(counts.open)
            progress(name, demo.sessions, counts)

        stage(f"{demo.sessions:,} sessions at once: connect, reset, a step of {WAIT_S:g} s, close")
        batch = RequestBatch(server.url, Mode.WS, demo.sessions, WAIT_S, TIMEOUT_S)
        done = run_batch(batch, progress=report)
    rows = [
        EpisodeRow(
            **asdict(row),
            workload=name,
            session=row.request_id,
            steps=int(row.step_latency is not None),
            step_latencies=[] if row.step_latency is None else [row.step_latency],
        )
        for row in done.rows
    ]
    spans = [
        (row.timestamp + row.connect_latency, row.timestamp + row.total_latency)
        for row in rows
        if row.connect_latency is not None and row.total_latency is not None
    ]
    opened = sum(row.connect_latency is not None for row in rows)
    return DemoWorkload(name, opened, done.wall_s, memory.per_session, rows, spans)


def _game(
    demo: Demo,
    env_id: str,
    actions: int,
    stage: Callable[[str], None],
    progress: Callable[[str, int, LoadCounts], None],
) -> DemoWorkload:
    target = f"gymnasium:{env_id}"
    stage(f"serving {target}")
    with ServedTarget(target, max_sessions=demo.concurrency + SPARE_SESSIONS) as server:
        memory = _Memory(server)
        stage(f"{demo.episodes:,} episodes over {demo.concurrency} sessions, random policy")
        plays = play_games(
            Games(server.url, demo.episodes, demo.concurrency, actions),
            env_id,
            # After the last episode, every session is still open.
            at_meeting=lambda number: memory.sample(demo.concurrency * number),
            progress=lambda counts: progress(env_id, demo.episodes, counts),
        )
    return DemoWorkload(env_id, len(plays.spans), plays.wall_s, memory.per_session, plays.rows, plays.spans)


class _Memory:
    """The growth of the server's memory per session, measured at the largest number of open sessions."""

    def __init__(self, server: ServedTarget):
        self._server = server
        self._base = server.resident_bytes()
        self._most = 0
        self._bytes = 0

    def sample(self, sessions: int) -> None:
        """Reads the memory, unless more sessions were open before."""
        if sessions and sessions >= self._most:
            self._most = sessions
            self._bytes = self._server.resident_bytes()

    @property
    def per_session(self) -> float:
        return max(0, self._bytes - self._base) / self._most if self._most else 0.0
