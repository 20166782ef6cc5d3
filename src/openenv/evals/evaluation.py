"""Run one evaluation, requested on the command line or in Python, up to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from .. import __version__
from ..client import GenericEnvClient
from ..errors import InvalidArgument, UsageError
from ..recording import check_folder
from .cases import MOST_SEED, Case, cases_of_seeds, cases_of_tasks, derived_seeds, parse_seeds
from .policy import Policy, RandomPolicy, UserPolicy, load_policy
from .report import EvalReport, RunInfo, summary_of
from .runner import EpisodeResult, EvalOptions, Runner
from .server import WAIT_S, EvalServer


class Evaluation:
    """One run of an evaluation.

    Args:
        connect: Makes a client with its own session.
        policy: The policy.
        cases: The cases to play.
        options: How to play them.
        about: Metadata for the report; the run sets `began` and `seconds`.
        on_episode: Called after each episode.

    Attributes:
        planned: Number of episodes to play.
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
        if len({case.key for case in cases}) < len(cases):
            raise InvalidArgument("two cases are the same: every seed, and every repeat of a task, is played once")
        self.planned = len(cases)
        self._policy = policy
        self._runner = Runner(connect, policy, cases, options, on_episode)
        self._order = {case.key: number for number, case in enumerate(cases)}
        self._about = about
        self._began = time.monotonic()

    async def run(self) -> EvalReport:
        """Plays all cases.

        Raises:
            OpenEnvError: No episode can be played, for a reason outside of the policy and the environment.
        """
        self._about.began, self._began = time.time(), time.monotonic()
        await self._runner.run()
        return self.report()

    @property
    def episodes(self) -> list[EpisodeResult]:
        """The finished episodes, in the order in which they ended."""
        return self._runner.episodes

    @property
    def players(self) -> int:
        """Number of episodes played concurrently: fewer than requested if the server was full."""
        return self._runner.players

    def close(self) -> None:
        """Closes the policy."""
        self._policy.close()

    def report(self) -> EvalReport:
        """The report on the finished episodes."""
        episodes = sorted(self.episodes, key=lambda episode: self._order[episode.key])
        self._about.seconds = round(time.monotonic() - self._began, 3)
        summary = summary_of(episodes, len(self._order), self._about.success_at)
        return EvalReport(
            interrupted=len(episodes) < len(self._order), about=self._about, summary=summary, episodes=episodes
        )


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
    about = RunInfo(
        target=str(base_url or getattr(env, "__name__", "app")),
        policy=who.name,
        split=played[0].split,
        concurrency=concurrency,
        max_steps=max_steps,
        retries=retries,
        success_at=success_at,
        openenv=__version__,
        began=0.0,
        record=None if client.get("record") is None else str(client["record"]),
    )
    options = EvalOptions(concurrency, max_steps, retries, named=about.record is not None)
    try:
        return await Evaluation(connect, who, played, options, about).run()
    finally:
        if who is not policy:
            who.close()


EPISODES = 100
RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """The options of an evaluation.

    Attributes:
        target: The evaluated target, as text.
        policy: `module:function`, or `random`.
        episodes: Number of episodes; None for all seeds or tasks, or for 100 if neither is given.
        seeds: Seeds as text for `parse_seeds`; None to derive them from `seed`.
        seed: Seed from which others are derived.
        split: Split with the tasks to play, instead of seeds.
        repeats: Number of episodes of each task.
        timeout_s: Limit for each call of the environment, in seconds.
        success_at: Lowest return that is a success; None to let the environment decide.
        record: Folder for records of the episodes; None to record nothing.
        options: How to play the episodes.

    Raises:
        UsageError: The values contradict each other, or the folder is not writable.
    """

    target: str
    policy: str
    episodes: int | None = None
    seeds: str | None = None
    seed: int = 0
    split: str | None = None
    repeats: int = 1
    timeout_s: float = 60.0
    success_at: float | None = None
    record: str | None = None
    options: EvalOptions

    def __post_init__(self) -> None:
        if self.seeds is not None and self.split is not None:
            raise InvalidArgument("--seeds and --split: give seeds, or a split, which has a seed for each task")
        if self.repeats > 1 and self.split is None:
            raise InvalidArgument(
                "--repeats is for tasks (--split): for more episodes give --episodes or more --seeds"
            )
        if not 0 <= self.seed <= MOST_SEED:
            raise InvalidArgument(f"--seed must be from 0 to {MOST_SEED}")
        if self.split is None:
            self._cases_of_seeds()
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
            concurrency=self.options.concurrency,
            max_steps=self.options.max_steps,
            retries=self.options.retries,
            success_at=self.success_at,
            openenv=__version__,
            began=0.0,
            record=self.record,
        )
        chosen = policy or RandomPolicy(server.action_schema(), server.tools())
        if self.split is None:
            cases = self._cases_of_seeds()
        else:
            count = server.num_tasks(self.split)
            cases = cases_of_tasks(count, self.split, self.seed, self.episodes, self.repeats)
        return Evaluation(connect, chosen, cases, self.options, about, on_episode)

    def _cases_of_seeds(self) -> list[Case]:
        if self.seeds is None:
            return cases_of_seeds(derived_seeds(self.seed, self.episodes or EPISODES), None)
        return cases_of_seeds(parse_seeds(self.seeds), self.episodes)
