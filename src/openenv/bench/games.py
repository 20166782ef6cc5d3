"""Whole episodes by a random policy, over sessions that play one after the other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ..client import GenericEnvClient
from .crew import Counts, Member, run_crew, run_loop, without_gc
from .file_limit import check_share, raise_file_limit
from .row import Mode, Row

__all__ = ["Games", "Play", "Plays", "play_games"]


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
class Play(Row):
    """One episode. Its latencies are those of a `Row`, with these differences:

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
class Plays:
    """What came of games.

    Attributes:
        rows: One an episode.
        spans: From when to when each session was open, in seconds of a common clock.
        wall_s: From the first connect to the last close.
    """

    rows: list[Play]
    spans: list[tuple[float, float]]
    wall_s: float


def play_games(
    games: Games,
    workload: str,
    at_meeting: Callable[[int], None] = lambda number: None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> Plays:
    """Plays all episodes, from one process of its own.

    Args:
        games: What to play.
        workload: What the rows call it.
        at_meeting: Called with 0 before the first connect, with 1 when all is played and every session still open.
        progress: Called about ten times a second; `finished` counts episodes.
    """
    check_share(games.sessions, 1, raise_file_limit())
    (plays,) = run_crew(partial(_play_all, games), [workload], at_meeting=at_meeting, progress=progress)
    return plays


def _play_all(games: Games, member: Member, workload: str) -> Plays:
    without_gc()
    member.meet()
    return run_loop(_Table(games, workload, member).play())


class _Table:
    """The sessions, and the episodes that they take from one heap."""

    def __init__(self, games: Games, workload: str, member: Member):
        self._games = games
        self._workload = workload
        self._member = member
        self._numbers: Iterator[int] = iter(range(games.episodes))
        self._rows: list[Play] = []
        self._spans: list[tuple[float, float]] = []

    async def play(self) -> Plays:
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
        return Plays(self._rows, self._spans, time.perf_counter() - began)

    async def _session(self, session: int, client: GenericEnvClient) -> float | None:
        """Plays episodes one after the other. Returns when the session was opened, None if it never was."""
        opened: float | None = None
        for number in self._numbers:
            seed = self._games.seed + number
            row = Play(
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

    async def _episode(self, row: Play, client: GenericEnvClient, seed: int) -> None:
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
