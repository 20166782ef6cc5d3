"""Plays episodes with a random policy, and summarizes them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from openenv._processes import raise_file_limit
from openenv._statistics import Quantiles, quantiles_of
from openenv.bench.batch import Mode, RequestRow
from openenv.bench.load import LoadCounts, LoadProcess, check_share, run_load, run_loop, without_gc
from openenv.client import GenericEnvClient


@dataclass(frozen=True, slots=True)
class Games:
    """Episodes to play.

    Attributes:
        url: Address of the server, in any form that `EnvClient` accepts.
        episodes: Number of episodes.
        sessions: Number of sessions that play concurrently.
        actions: Number of actions: the environment accepts `{"action": n}` with 0 <= n < actions.
        seed: Episode i is reset with seed + i, which also seeds its actions.
        timeout_s: Time limit of each call in seconds.
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
        connect_latency: Only for the first episode of a session; None for later ones.
        step_latency: Mean of `step_latencies`.
        total_latency: Time from the start, which is the connect or the reset, to the last reply.
        workload: Name of the environment.
        session: Number of the session.
        seed: Seed of the reset.
        steps: Length of the episode.
        episode_return: Sum of the rewards.
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
    """The results of games.

    Attributes:
        rows: One row for each episode.
        spans: Times of the open and the close of each session, in seconds of a common clock.
        wall_s: Seconds from the first connect to the last close.
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
    """Plays all episodes in a separate process.

    Args:
        games: The episodes to play.
        workload: Name of the workload in the rows.
        at_meeting: Called with 0 before the first connect, and with 1 after the last episode, with all sessions open.
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
    """Runs the sessions. They take their episodes from a shared iterator."""

    def __init__(self, games: Games, workload: str, member: LoadProcess):
        self._games = games
        self._workload = workload
        self._member = member
        self._numbers: Iterator[int] = iter(range(games.episodes))
        self._rows: list[EpisodeRow] = []
        self._spans: list[tuple[float, float]] = []

    async def play(self) -> EpisodeRows:
        """Plays until no episode is left, then meets the parent process, then closes the sessions."""
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
        """Plays episodes one after the other. Returns the time of the connect, or None if it failed."""
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
            except Exception as error:  # noqa: BLE001  a failed episode must not end the others
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
    """The results of one workload of the demo.

    Attributes:
        name: Name of the environment.
        sessions: Number of opened sessions.
        wall_s: Seconds from the first connect to the last close.
        session_bytes: Growth of the server's resident memory for each open session.
        rows: One row for each request or episode.
        spans: Start and end of the active time of each session after its connect, in seconds of one clock.
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
        """Latencies of a phase in seconds: of every step, or one for each successful row."""
        good = [row for row in self.rows if row.success]
        if phase == "step":
            return [latency for row in good for latency in row.step_latencies]
        return [value for row in good if (value := getattr(row, f"{phase}_latency")) is not None]

    def spreads(self) -> dict[str, Quantiles]:
        """The quantiles of every phase."""
        return {phase: quantiles_of(self.latencies(phase)) for phase in PHASES}

    def line(self) -> DemoSummary:
        """The line of `summary.csv`, without the latencies."""
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
