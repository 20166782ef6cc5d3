"""Play episodes for their returns: by the environment's own solution, or by actions that were chosen beforehand."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Self, TypeVar

from ..environment import Environment
from ..errors import OpenEnvError
from ..runtime.manager import SessionManager, result_of
from ..runtime.profile import Execution
from ..runtime.session import Session
from .check import CheckFailure, CheckSkip
from .harness import CallOutcome, ConformanceHarness, EpisodePlayer

Action = dict[str, Any]
Job = TypeVar("Job")
Played = TypeVar("Played")
# Tasks that are played by their solution, and the first seeds of tasks for players: those to choose from, and others.
TASKS = 8
FIRST_TASK, FIRST_TRIAL, FIRST_PROOF = 1000, 1500, 2000
TRIALS, PROOFS = 4, 24
MOST_STEPS, MOST_SOLUTION_STEPS = 60, 1000
# Invalid actions in a row, after which an episode is given up.
MOST_REFUSED = 4
# Time for the episodes of one check, as a multiple of the limit of a call, and as a part of the time that is left of
# that for all checks; and seconds for one episode of a cheat.
BUDGET_CALLS, BUDGET_PART, ALL_CALLS, EPISODE_S = 0.2, 1 / 12, 3.0, 1.0
# Sessions that play at once, if each has a process of its own.
SESSIONS = 4
# Parts of the range from floor to maximum: how far a solution may be below, and a cheat above.
BELOW, ABOVE = 0.02, 0.05
# One-sided quantile of the normal distribution: a sound environment fails a check by chance in one of 200 cases.
CONFIDENCE = 2.6


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """One episode and its return.

    Attributes:
        seed: Seed of its reset.
        floor, maximum: Range of the returns of this task, as the environment declares it.
        actions: The actions, in order.
        calls: The outcome of the reset and of each step.
        cut: Whether it ended at its time limit, so that its return says nothing about the plan.
    """

    seed: int
    floor: float
    maximum: float
    actions: list[Action]
    calls: list[CallOutcome]
    cut: bool = False

    @property
    def total(self) -> float:
        """The return: the sum of the rewards."""
        return math.fsum(float(call.reward) for call in self.calls if isinstance(call.reward, (int, float)))

    @property
    def share(self) -> float:
        """The return as part of the range: 0 at the floor, 1 at the maximum."""
        return (self.total - self.floor) / (self.maximum - self.floor)

    @property
    def unsendable(self) -> str | None:
        """The error of a reward that is not a finite number; None if all are."""
        errors = [call.error.message for call in self.calls if call.error is not None]
        return next((error for error in errors if error.startswith("the reward is ")), None)


def declared_range(environment: Any, _: None) -> Any:
    """The range of returns that an environment declares for its episode; None if it declares none."""
    method = getattr(environment, "return_range", None)
    return method() if callable(method) else None


def next_action(environment: Any, _: None) -> Any:
    """The fields of the next action of an environment's solution; None if it declares none."""
    method = getattr(environment, "oracle", None)
    if not callable(method) or getattr(type(environment), "oracle", None) is Environment.oracle:
        return None
    action = method()
    if not hasattr(action, "model_dump"):
        return action
    return {name: value for name, value in action.model_dump(mode="json").items() if name != "metadata" or value}


class ScoredSession:
    """A session of scored episodes.

    Args:
        player: Plays it.
        manager: The sessions of the server.
        opening: Held while one session of the server begins to open.
    """

    def __init__(self, player: EpisodePlayer, manager: SessionManager, opening: asyncio.Lock):
        self._player = player
        self._manager = manager
        self._opening = opening
        self._session: Session | None = None

    async def call(self, operation: Callable[[Any, Any], Any]) -> Any:
        """Runs a function on the environment, where its other methods run.

        Raises:
            OpenEnvError: It failed.
        """
        assert self._session is not None, "no episode was begun"
        return await result_of(partial(self._session.call, operation, None))

    async def state(self) -> dict[str, Any]:
        """The state, as clients read it."""
        return await self._player.client.state()

    async def run(
        self,
        seed: int,
        choose: Callable[[int], Awaitable[Action | None]],
        most: int = MOST_STEPS,
        limit_s: float = EPISODE_S,
        after_end: int = 0,
    ) -> ScoredEpisode:
        """Plays an episode.

        Args:
            seed: Seed of its reset.
            choose: Returns the action of a step, counted from 0. None ends the episode.
            most: Most steps.
            limit_s: Seconds after which no further step is made.
            after_end: Number of steps to try after its end.

        Raises:
            CheckSkip: The reset failed.
            CheckFailure: `return_range` raised, or did not return two numbers.
        """
        until = time.monotonic() + limit_s
        await asyncio.sleep(0)  # inline environments never yield: let other tasks run
        calls = [await self._reset(seed)]
        if calls[0].error is not None:
            raise CheckSkip(f"reset(seed={seed}) failed: {calls[0].error.message}")
        floor, maximum = await self._range()
        actions: list[Action] = []
        cut, refused = False, 0
        while len(actions) < most and not cut:
            action = None if calls[-1].done and not after_end else await choose(len(actions))
            if action is None:
                break
            after_end -= calls[-1].done
            actions.append(action)
            calls.append(await self._player.step(action))
            cut = time.monotonic() > until and not calls[-1].done
            error = calls[-1].error
            if error is not None and error.blame != "client" and not error.message.startswith("the reward is "):
                break  # the environment failed, or the session is lost
            refused = 0 if error is None else refused + 1
            if refused == MOST_REFUSED:
                break
        return ScoredEpisode(seed, floor, maximum, actions, calls, cut)

    async def play(self, seed: int, actions: Sequence[Action], repeat: bool = True, **limits: Any) -> ScoredEpisode:
        """Plays an episode with given actions, again from the first one after the last if `repeat`."""

        async def choose(step: int) -> Action | None:
            return actions[step % len(actions)] if repeat or step < len(actions) else None

        return await self.run(seed, choose, **limits)

    async def solve(self, seed: int, limit_s: float) -> ScoredEpisode:
        """Plays an episode with the environment's solution.

        Raises:
            CheckFailure: `oracle` raised, or did not return an action.
        """

        async def choose(_: int) -> Action | None:
            try:
                action = await self.call(next_action)
            except OpenEnvError as error:
                raise CheckFailure(
                    f"oracle() raised {error.message} with seed={seed}.",
                    "make oracle() return the next action of a solution at any time between reset and the end",
                ) from None
            if action is not None and not isinstance(action, dict):
                raise CheckFailure(f"oracle() returned {action!r:.100}.", "return an action, or its fields as a dict")
            return action

        return await self.run(seed, choose, MOST_SOLUTION_STEPS, limit_s)

    async def _reset(self, seed: int) -> CallOutcome:
        if self._session in self._manager.sessions:
            return await self._player.reset(seed)
        # The client opens a session now, or again after one was lost: the one that is added is its session.
        async with self._opening:
            before = self._manager.sessions
            reset = asyncio.ensure_future(self._player.reset(seed))
            added: list[Session] = []
            while not added and not reset.done():
                await asyncio.sleep(0)
                added = [each for each in self._manager.sessions if each not in before]
            self._session = added[0] if added else None
        return await reset

    async def _range(self) -> tuple[float, float]:
        found: Any = None
        try:
            found = await self.call(declared_range)
            floor, maximum = (float(each) for each in found or ())
        except (OpenEnvError, TypeError, ValueError) as error:
            if found is None and not isinstance(error, OpenEnvError):
                raise CheckSkip(NO_RANGE) from None
            raise CheckFailure(f"return_range() gave {found!r:.100} ({error}).", FIX_RANGE) from None
        if not (math.isfinite(floor) and math.isfinite(maximum) and floor < maximum):
            raise CheckFailure(f"return_range() gave ({floor!r}, {maximum!r}).", FIX_RANGE)
        return floor, maximum


NO_RANGE = (
    "the environment declares no range of returns: let `return_range` return the return of a player that ignores the "
    "observations, and that of a solution"
)
FIX_RANGE = "return two finite numbers: the return of a player that ignores the observations, and a higher maximum"


@dataclass(frozen=True, slots=True)
class ProvenReturn:
    """The returns of one player in tasks that it was not chosen by.

    Attributes:
        name: The player, in words.
        episodes: Its episodes.
    """

    name: str
    episodes: list[ScoredEpisode]

    @property
    def mean(self) -> float:
        """The mean share of the range."""
        return fmean(each.share for each in self.episodes)

    @property
    def is_paid(self) -> bool:
        """Whether the mean is above the floor by more than chance explains."""
        shares = [each.share for each in self.episodes]
        error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
        return self.mean - CONFIDENCE * error > ABOVE

    def sentence(self) -> str:
        """What it got, in words."""
        returns = fmean(each.total for each in self.episodes)
        first = self.episodes[0]
        return (
            f"{self.name}: a mean return of {returns:.3g} in {len(self.episodes)} tasks, where the declared floor is "
            f"{first.floor:.3g} and the maximum {first.maximum:.3g}"
        )


class EpisodeScorer:
    """Plays the episodes of semantic checks in an environment.

    Args:
        harness: The environment under test.

    Attributes:
        code_field: The field with code (`code_checks.CodeField`); False without one, None before the first search.
    """

    def __init__(self, harness: ConformanceHarness):
        self.harness = harness
        self.code_field: Any = None
        self._until = time.monotonic() + ALL_CALLS * harness.call_s
        self._opening = asyncio.Lock()
        self._solutions: list[ScoredEpisode] | None = None

    @classmethod
    def of(cls, harness: ConformanceHarness) -> Self:
        """The scorer of an environment; the same one for each check, so that solutions are played once.

        Raises:
            CheckSkip: The environment is a batch: its episodes have no methods of their own.
        """
        if harness.server.batch is not None:
            raise CheckSkip("a BatchedEnvironment has no `oracle` and `return_range` of single episodes")
        if harness.scorer is None:
            harness.scorer = cls(harness)
        found: Self = harness.scorer
        return found

    @property
    def budget_s(self) -> float:
        """Seconds for the episodes of one check; fewer, the more time the checks before it took."""
        return min(BUDGET_CALLS * self.harness.call_s, max(BUDGET_PART * (self._until - time.monotonic()), EPISODE_S))

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[ScoredSession]:
        """A session for a block."""
        async with self.harness.session() as player:
            yield ScoredSession(player, self.harness.server.manager, self._opening)

    async def session_count(self) -> int:
        """The number of sessions that play at once."""
        in_processes = (await self.harness.facts()).execution is Execution.PROCESS
        return min(SESSIONS, self.harness.server.manager.limits.max_sessions) if in_processes else 1

    async def each(
        self,
        jobs: Iterable[Job],
        play: Callable[[ScoredSession, Job], Awaitable[Played]],
        until: float = math.inf,
        least: int = 1,
    ) -> list[Played]:
        """Plays a list of jobs, several at once if sessions have processes of their own.

        Args:
            jobs: The jobs; each begins when a session is free for it.
            play: Plays one job in a session.
            until: Monotonic time after which no further job begins.
            least: Number of jobs that are played also after that.

        Returns:
            The results, in the order of the jobs.

        Raises:
            Exception: The first one that `play` raised.
        """
        found: dict[int, Played] = {}

        def waiting() -> Generator[tuple[int, Job], None, None]:
            for number, job in enumerate(jobs):
                if number >= least and time.monotonic() > until:
                    return
                yield number, job

        async def work() -> None:
            async with self.session() as session:
                for number, job in queue:
                    try:
                        found[number] = await play(session, job)
                    except BaseException:
                        queue.close()
                        raise

        queue = waiting()
        ends = await asyncio.gather(*(work() for _ in range(await self.session_count())), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error
        return [found[number] for number in sorted(found)]

    async def solutions(self) -> list[ScoredEpisode]:
        """An episode of the environment's solution for each of some tasks.

        Raises:
            CheckSkip: The environment declares no solution.
            CheckFailure: `oracle` raised.
        """
        if self._solutions is None:
            found: list[ScoredEpisode] = []
            limit_s = 2 * self.budget_s
            until = time.monotonic() + limit_s

            async def solve(session: ScoredSession, seed: int) -> ScoredEpisode:
                return await session.solve(seed, limit_s)

            for first in range(FIRST_TASK, FIRST_TASK + 3 * TASKS, TASKS):
                episodes = await self.each(range(first, first + TASKS), solve, until, least=2)
                found += [each for each in episodes if each.actions and not each.cut]
                if len(found) >= TASKS or time.monotonic() > until:
                    break
            if not found:
                raise CheckSkip("the environment declares no solution: let `oracle` return the next action of one")
            self._solutions = found[:TASKS]
        return self._solutions

    async def best_of(self, players: Sequence[tuple[str, Sequence[Action]]]) -> ProvenReturn:
        """Chooses the best of some players in a few tasks, and plays it in others.

        Args:
            players: Names and actions. The actions are repeated until the end of each episode.

        Raises:
            CheckFailure: A reward was not a finite number.
        """
        budget_s = self.budget_s
        until = time.monotonic() + budget_s
        seeds = range(FIRST_TRIAL, FIRST_TRIAL + (TRIALS if len(players) <= 2 * TASKS else 2))

        async def play(session: ScoredSession, job: tuple[str, Sequence[Action], int]) -> ScoredEpisode:
            name, actions, seed = job
            episode = await session.play(seed, actions)
            if (error := episode.unsendable) is not None:
                raise CheckFailure(
                    f"{name}: {error}.", "check that each number is finite (math.isfinite) before you compute with it"
                )
            return episode

        # Each player in its first task, then each in its second: if time is short, none is left out.
        trials = [(*player, seed) for seed in seeds for player in players]
        shares: dict[int, list[float]] = {}
        for number, episode in enumerate(await self.each(trials, play, until)):
            shares.setdefault(number % len(players), []).append(episode.share)
        best = max(shares, key=lambda number: (fmean(shares[number]), -number))
        name, actions = players[best]
        proofs = [(name, actions, seed) for seed in range(FIRST_PROOF, FIRST_PROOF + PROOFS)]
        return ProvenReturn(name, await self.each(proofs, play, time.monotonic() + budget_s, least=2))
