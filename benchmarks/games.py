"""Episodes by a random policy, and their figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from openenv._statistics import Quantiles, quantiles_of
from openenv._tuning import raise_file_limit
from openenv.bench.batch import Mode, RequestRow
from openenv.bench.load import LoadCounts, LoadProcess, check_share, run_load, run_loop, without_gc
from openenv.client import GenericEnvClient


@dataclass(frozen=True, slots=True)
class Games:
    """Episodes to play.

    Attributes:
        url: Address of the server, in any form that `EnvClient` takes.
        episodes: How many.
        sessions: How many are played at the same time, each on a session of its own.
        actions: The environment takes `{"action": n}`, n from 0 to below this.
        seed: Episode i is reset with seed + i, and its actions are drawn from that seed too.
        timeout_s: Seconds for each call.
    """

    url: str
    episodes: int
    sessions: int
    actions: int
    seed: int = 0
    timeout_s: float = 30.0


@dataclass(slots=True)
class EpisodeRow(RequestRow):
    """One episode. Its latencies are those of a `RequestRow`, with these differences:

    Attributes:
        connect_latency: Of the first episode of a session; None for those that find it connected.
        step_latency: The mean of `step_latencies`.
        total_latency: From the beginning, which is the connect or the reset, to the last reply.
        workload: What was served.
        session: Number of the session that played it.
        seed: Given to the reset.
        steps: Length of the episode.
        episode_return: Sum of its rewards.
        step_latencies: Seconds from sending each step to its reply.
    """

    workload: str = ""
    session: int = 0
    seed: int | None = None
    steps: int = 0
    episode_return: float | None = None
    step_latencies: list[float] = field(default_factory=list)


@dataclass(slots=True)
class EpisodeRows:
    """What came of games.

    Attributes:
        rows: One an episode.
        spans: From when to when each session was open, in seconds of a common clock.
        wall_s: From the first connect to the last close.
    """

    rows: list[EpisodeRow]
    spans: list[tuple[float, float]]
    wall_s: float


def play_games(
    games: Games,
    workload: str,
    at_meeting: Callable[[int], None] = lambda number: None,
    progress: Callable[[LoadCounts], None] = lambda counts: None,
) -> EpisodeRows:
    """Plays all episodes, from one process of its own.

    Args:
        games: What to play.
        workload: What the rows call it.
        at_meeting: Called with 0 before the first connect, with 1 when all is played and every session still open.
        progress: Called about ten times a second; `finished` counts episodes.
    """
    check_share(games.sessions, 1, raise_file_limit())
    (plays,) = run_load(partial(_play_all, games), [workload], at_meeting=at_meeting, progress=progress)
    return plays


def _play_all(games: Games, member: LoadProcess, workload: str) -> EpisodeRows:
    without_gc()
    member.meet()
    return run_loop(_EpisodeRunner(games, workload, member).play())


class _EpisodeRunner:
    """The sessions, and the episodes that they take from one heap."""

    def __init__(self, games: Games, workload: str, member: LoadProcess):
        self._games = games
        self._workload = workload
        self._member = member
        self._numbers: Iterator[int] = iter(range(games.episodes))
        self._rows: list[EpisodeRow] = []
        self._spans: list[tuple[float, float]] = []

    async def play(self) -> EpisodeRows:
        """Plays until no episode is left, then lets the others know, then closes."""
        began = time.perf_counter()
        clients = [
            GenericEnvClient(
                self._games.url,
                connect_timeout_s=self._games.timeout_s,
                message_timeout_s=self._games.timeout_s,
            )
            for _ in range(self._games.sessions)
        ]
        opened = await asyncio.gather(*(self._session(number, client) for number, client in enumerate(clients)))
        self._member.meet()
        await asyncio.gather(*(self._close(client, when) for client, when in zip(clients, opened, strict=True)))
        return EpisodeRows(self._rows, self._spans, time.perf_counter() - began)

    async def _session(self, session: int, client: GenericEnvClient) -> float | None:
        """Plays episodes one after the other. Returns when the session was opened, None if it never was."""
        opened: float | None = None
        for number in self._numbers:
            seed = self._games.seed + number
            row = EpisodeRow(
                number,
                Mode.WS,
                time.time(),
                None,
                self._games.sessions,
                workload=self._workload,
                session=session,
                seed=seed,
            )
            self._rows.append(row)
            try:
                began = time.perf_counter()
                if opened is None:
                    await client.connect()
                    opened = time.perf_counter()
                    row.connect_latency = opened - began
                    self._member.count("connected")
                await self._episode(row, client, seed)
                row.total_latency = time.perf_counter() - began
                row.success = True
            except Exception as error:  # noqa: BLE001  the edge of an episode: one that fails must not end the others
                row.fail(error)
                self._member.count("failed")
            self._member.count("finished")
        return opened

    async def _episode(self, row: EpisodeRow, client: GenericEnvClient, seed: int) -> None:
        policy = random.Random(seed)  # noqa: S311  a policy, not a secret
        clock = time.perf_counter
        sent = clock()
        result = await client.reset(seed=seed)
        row.reset_latency = clock() - sent
        self._member.count("reset")
        total = 0.0
        while not result.done:
            action = {"action": policy.randrange(self._games.actions)}
            sent = clock()
            result = await client.step(action)
            row.step_latencies.append(clock() - sent)
            self._member.count("steps")
            row.steps += 1
            total += float(result.reward or 0.0)
        row.episode_return = total
        row.step_latency = sum(row.step_latencies) / max(1, row.steps)

    async def _close(self, client: GenericEnvClient, opened: float | None) -> None:
        await client.close()
        if opened is not None:
            self._spans.append((opened, time.perf_counter()))
            self._member.count("closed")


PHASES = ("connect", "reset", "step", "total")


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """A line of the demo's `summary.csv`. Latencies are seconds."""

    workload: str
    requests: int
    successful: int
    failed: int
    success_rate: float
    sessions: int
    total_wall_time: float
    sessions_per_second: float
    steps: int
    steps_per_second: float
    memory_per_session_kb: float


@dataclass(slots=True)
class DemoWorkload:
    """What one part of the demo came to.

    Attributes:
        name: What was served.
        sessions: Sessions that were opened.
        wall_s: Seconds from the first connect to the last close.
        session_bytes: By how much the server's resident memory grew for each open session.
        rows: One a request or episode.
        spans: From when to when each session was connected and had something to do, in seconds of one clock.
    """

    name: str
    sessions: int
    wall_s: float
    session_bytes: float
    rows: list[EpisodeRow]
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def successful(self) -> int:
        return sum(row.success for row in self.rows)

    @property
    def failed(self) -> int:
        return len(self.rows) - self.successful

    @property
    def steps(self) -> int:
        return sum(row.steps for row in self.rows)

    def latencies(self, phase: str) -> list[float]:
        """Seconds: of every step, and of what else succeeded, by the name of its phase."""
        good = [row for row in self.rows if row.success]
        if phase == "step":
            return [latency for row in good for latency in row.step_latencies]
        return [value for row in good if (value := getattr(row, f"{phase}_latency")) is not None]

    def spreads(self) -> dict[str, Quantiles]:
        """The quantiles of every phase."""
        return {phase: quantiles_of(self.latencies(phase)) for phase in PHASES}

    def line(self) -> DemoSummary:
        """What `summary.csv` says, but for the latencies."""
        return DemoSummary(
            workload=self.name,
            requests=len(self.rows),
            successful=self.successful,
            failed=self.failed,
            success_rate=self.successful / len(self.rows),
            sessions=self.sessions,
            total_wall_time=self.wall_s,
            sessions_per_second=self.sessions / self.wall_s,
            steps=self.steps,
            steps_per_second=self.steps / self.wall_s,
            memory_per_session_kb=self.session_bytes / 1024,
        )
