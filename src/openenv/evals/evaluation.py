"""Run one evaluation, requested on the command line or in Python, up to its report."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

from .. import errors
from .._backoff import Backoff
from ..client import GenericEnvClient
from ..errors import InvalidArgument, UsageError
from ..recording import check_folder
from .policy import Policy, RandomPolicy, UserPolicy, load_policy
from .report import EvalReport, RunInfo, report_of
from .runner import (
    MOST_SEED,
    Case,
    EpisodeResult,
    EvalOptions,
    cases_of_seeds,
    cases_of_tasks,
    derived_seeds,
    failed_episode,
    parse_seeds,
    play,
)
from .server import WAIT_S, EvalServer

# Seconds before a case is tried again, doubled each time, and their maximum.
PAUSE_S, MOST_PAUSE_S = 0.25, 8.0
# Seconds that a case waits for a free slot of the server.
PATIENCE_S = 60.0


@dataclass(slots=True)
class _Progress:
    """The progress of a case."""

    case: Case
    attempts: int = 0
    began: float = field(default_factory=time.monotonic)
    backoff: Backoff = field(default_factory=lambda: Backoff(PAUSE_S, MOST_PAUSE_S))
    refused_at: float | None = None


class Evaluation:
    """One run of an evaluation.

    A failure ends only its episode. A failure of the policy or of the environment would recur, so the episode is not
    repeated. A failure of the infrastructure says nothing about the policy, so the episode is played again, with the
    same seed, in a new session. An error of the whole run (an unknown task, a wrong key) ends the run.

    If the server is full, fewer episodes are played at the same time.

    Args:
        connect: Makes a client with its own session.
        policy: The policy.
        cases: The cases to play.
        options: How to play them.
        about: Metadata for the report; the run sets `began` and `seconds`.
        on_episode: Called after each episode.

    Attributes:
        planned: Number of episodes to play.
        episodes: The finished episodes, in the order in which they ended; also after the run was cancelled.
        players: Number of episodes played concurrently: fewer than requested if the server was full.
    """

    def __init__(
        self,
        connect: Callable[[], GenericEnvClient],
        policy: Policy,
        cases: Sequence[Case],
        options: EvalOptions,
        about: RunInfo,
        on_episode: Callable[[EpisodeResult], None] = lambda episode: None,
    ):
        self._order = {case.key: number for number, case in enumerate(cases)}
        if len(self._order) < len(cases):
            raise InvalidArgument("two cases are the same: each seed, and each repeat of a task, is played once")
        self._connect = connect
        self._policy = policy
        self._waiting = deque(_Progress(case) for case in cases)
        self._options = options
        self._about = about
        self._on_episode = on_episode
        # Clients that have a session.
        self._with_session: set[GenericEnvClient] = set()
        self._began = time.monotonic()
        self.planned = len(cases)
        self.episodes: list[EpisodeResult] = []
        self.players = min(options.concurrency, len(cases))

    async def run(self) -> EvalReport:
        """Plays all cases.

        Raises:
            OpenEnvError: No episode can be played, for a reason outside of the policy and the environment.
        """
        self._about.began, self._began = time.time(), time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.players):
                    group.create_task(self._play_cases())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # it cancelled the others
        return self.report()

    def close(self) -> None:
        """Closes the policy."""
        self._policy.close()

    def report(self) -> EvalReport:
        """The report on the finished episodes."""
        self._about.seconds = round(time.monotonic() - self._began, 3)
        return report_of(sorted(self.episodes, key=lambda each: self._order[each.key]), self.planned, self._about)

    async def _play_cases(self) -> None:
        """Plays in one session after another, while cases are left."""
        more = True
        while more and self._waiting:
            client = self._connect()
            try:
                more = await self._in_session(client)
            finally:
                self._with_session.discard(client)
                with suppress(errors.OpenEnvError):
                    await client.close()

    async def _in_session(self, client: GenericEnvClient) -> bool:
        """Plays until the session is no longer usable. Returns whether to open another one."""
        while self._waiting:
            progress = self._waiting.popleft()
            progress.attempts += 1
            try:
                progress.began = time.monotonic()
                case, named = progress.case, {}
                if self._about.record is not None:  # ids by which the records are found
                    name = f"seed-{case.seed}" if case.index is None else f"{case.split}-{case.index}-{case.repeat}"
                    again = "" if progress.attempts == 1 else f"-again-{progress.attempts - 1}"
                    named["episode_id"] = f"{name}{again}"
                first = await client.reset(**case.arguments(), **named)
                self._with_session.add(client)
                most_steps = self._options.max_steps
                episode = await play(client, case, self._policy, first, most_steps, named.get("episode_id"))
            except errors.CapacityError as error:
                return await self._wait_for_room(progress, error)
            except errors.OpenEnvError as error:
                if not await self._after_failure(progress, error):
                    return True
            except asyncio.CancelledError:
                self._waiting.appendleft(progress)
                raise
            else:
                self._note(progress, episode)
        return False

    async def _wait_for_room(self, progress: _Progress, error: errors.CapacityError) -> bool:
        """Returns a case to the queue since the server has no free slot; waits if no other client has a session."""
        now = time.monotonic()
        progress.refused_at = progress.refused_at or now
        if not self._with_session and now - progress.refused_at > PATIENCE_S:
            self._note(progress, failed_episode(progress.case, error, now - progress.began))
            return True
        progress.attempts -= 1
        self._waiting.appendleft(progress)
        if self._with_session:
            self.players -= 1
            return False
        await asyncio.sleep(error.retry_after_s or MOST_PAUSE_S / 8)
        return True

    async def _after_failure(self, progress: _Progress, error: errors.OpenEnvError) -> bool:
        """Handles a failed case: repeats or records it. Returns whether the session may be used again."""
        if error.blame == "client" and not isinstance(error, errors.PolicyFailed):
            raise error
        if error.blame == "infrastructure" and progress.attempts <= self._options.retries:
            self._waiting.append(progress)
            await asyncio.sleep(progress.backoff.grow())
            return False
        self._note(progress, failed_episode(progress.case, error, time.monotonic() - progress.began))
        return isinstance(error, errors.PolicyFailed)

    def _note(self, progress: _Progress, episode: EpisodeResult) -> None:
        episode.attempts = progress.attempts
        self.episodes.append(episode)
        self._on_episode(episode)


async def evaluate(
    policy: str | Callable[..., Any] | Policy,
    cases: Sequence[Case] | Sequence[int],
    base_url: str | None = None,
    *,
    env: Any = None,
    app: Any = None,
    concurrency: int = 64,
    max_steps: int = 1000,
    retries: int = 2,
    success_at: float | None = None,
    **client: Any,
) -> EvalReport:
    """Evaluates a policy in an environment: `openenv eval` for Python.

    Args:
        policy: A function, class or object, as in `UserPolicy`; `module:function`; or a `Policy`.
        cases: Seeds, or cases of tasks (`cases_of_tasks`).
        base_url: URL of the server.
        env: An `Environment` class to step in this process, instead of `base_url`.
        app: An app from `create_app`, instead of `base_url`.
        concurrency: Episodes at the same time, each in its own session.
        max_steps: Most steps of an episode.
        retries: Most repeats of an episode that failed because of the infrastructure, with the same seed.
        success_at: Lowest return that is a success; None to let the environment decide.
        client: Further arguments of `GenericEnvClient`: `api_key`, `message_timeout_s`, `record`.

    Raises:
        OpenEnvError: No episode can be played, for a reason outside of the policy and the environment.
    """
    if isinstance(policy, str):
        who: Policy = load_policy(policy)
    elif hasattr(policy, "begin") and hasattr(policy, "attempts"):
        who = cast("Policy", policy)
    else:
        who = UserPolicy(getattr(policy, "__name__", type(policy).__name__), policy)
    connect = partial(GenericEnvClient, base_url, env=env, app=app, **client)
    played = [case if isinstance(case, Case) else Case(case) for case in cases]
    if not played:
        raise UsageError("there is nothing to play: give seeds, or cases")
    options = EvalOptions(concurrency, max_steps, retries)
    about = RunInfo(
        target=str(base_url or getattr(env, "__name__", "app")),
        policy=who.name,
        split=played[0].split,
        **asdict(options),
        success_at=success_at,
        record=None if client.get("record") is None else str(client["record"]),
    )
    try:
        return await Evaluation(connect, who, played, options, about).run()
    finally:
        if who is not policy:
            who.close()


EPISODES = 100
RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChoice:
    """Which episodes to play.

    Attributes:
        episodes: Number of episodes; None for all seeds or tasks, or for 100 if neither is given.
        seeds: Seeds as text for `parse_seeds`; None to derive them from `seed`.
        seed: Seed from which others are derived.
        split: Split with the tasks to play, instead of seeds.
        repeats: Number of episodes of each task.

    Raises:
        UsageError: The values contradict each other.
    """

    episodes: int | None = None
    seeds: str | None = None
    seed: int = 0
    split: str | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.seeds is not None and self.split is not None:
            raise InvalidArgument("--seeds and --split: give seeds, or a split, which has a seed for each task")
        if not 0 <= self.seed <= MOST_SEED:
            raise InvalidArgument(f"--seed must be from 0 to {MOST_SEED}")
        if self.split is None:
            self._cases_of_seeds()

    def cases(self, server: EvalServer) -> list[Case]:
        """The cases: each repeat of a task is one.

        Raises:
            OpenEnvError: The server cannot be reached, or does not have the split.
        """
        if self.split is None:
            return self._cases_of_seeds()
        count = server.num_tasks(self.split)
        return cases_of_tasks(count, self.split, self.seed, self.episodes, self.repeats)

    def _cases_of_seeds(self) -> list[Case]:
        if self.seeds is None:
            return cases_of_seeds(derived_seeds(self.seed, self.episodes or EPISODES), None)
        return cases_of_seeds(parse_seeds(self.seeds), self.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest(CaseChoice):
    """The options of an evaluation.

    Attributes:
        target: The evaluated target, as text.
        policy: `module:function`, or `random`.
        timeout_s: Limit for each call of the environment, in seconds.
        success_at: Lowest return that is a success; None to let the environment decide.
        record: Folder for records of the episodes; None to record nothing.
        options: How to play the episodes.

    Raises:
        UsageError: The values contradict each other, or the folder is not writable.
    """

    target: str
    policy: str
    timeout_s: float = 60.0
    success_at: float | None = None
    record: str | None = None
    options: EvalOptions

    def __post_init__(self) -> None:
        CaseChoice.__post_init__(self)
        if self.repeats > 1 and self.split is None:
            raise InvalidArgument(
                "--repeats is for tasks (--split): for more episodes give --episodes or more --seeds"
            )
        if self.record is not None:
            check_folder(self.record)

    def chosen_policy(self) -> Policy | None:
        """The policy; None if it can be made only with the server's schema.

        Raises:
            UsageError: The policy does not exist.
            ImportFailed: Its module cannot be imported.
        """
        return None if self.policy == RANDOM else load_policy(self.policy)

    def prepare(
        self,
        server: EvalServer,
        policy: Policy | None,
        on_episode: Callable[[EpisodeResult], None] = lambda episode: None,
    ) -> Evaluation:
        """The evaluation with a running server.

        Args:
            server: The server.
            policy: The result of `chosen_policy`.
            on_episode: Called after each episode.

        Raises:
            OpenEnvError: The server cannot be reached, or does not have the split.
        """
        given: dict[str, Any] = {} if self.record is None else {"record": self.record}
        given |= {"api_key": server.api_key, "message_timeout_s": self.timeout_s, "wait_s": WAIT_S}
        connect = partial(GenericEnvClient, server.url, **given)
        about = RunInfo(
            target=self.target,
            environment=server.environment(),
            policy=self.policy,
            split=self.split,
            **asdict(self.options),
            success_at=self.success_at,
            record=self.record,
        )
        chosen = policy or RandomPolicy(server.action_schema(), server.tools())
        return Evaluation(connect, chosen, self.cases(server), self.options, about, on_episode)
