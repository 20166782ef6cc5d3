"""A policy, played in an environment: from what is asked for to a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import __version__
from ..client import GenericEnvClient
from ..errors import InvalidArgument, UsageError
from .cases import Case
from .episode import Episode
from .policy import Policy, UserPolicy, load_policy
from .report import About, Report, summary_of
from .runner import Options, Runner

__all__ = ["Evaluation", "evaluate"]


class Evaluation:
    """One run.

    Args:
        connect: Makes a client with a session of its own.
        policy: Who acts.
        cases: What to play.
        options: How.
        about: What to say of it in the report; `began` and `seconds` are filled in.
        heard: Called after each episode.

    Attributes:
        planned: How many episodes there are to be.
    """

    def __init__(
        self,
        connect: Callable[[], GenericEnvClient],
        policy: Policy,
        cases: Sequence[Case],
        options: Options,
        about: About,
        heard: Callable[[Episode], None] = lambda episode: None,
    ):
        if len({case.key for case in cases}) < len(cases):
            raise InvalidArgument("two cases are the same: every seed, and every repeat of a task, is played once")
        self.planned = len(cases)
        self._policy = policy
        self._runner = Runner(connect, policy, cases, options, heard)
        self._order = {case.key: number for number, case in enumerate(cases)}
        self._about = about
        self._began = time.monotonic()

    async def run(self) -> Report:
        """Plays all cases.

        Raises:
            OpenEnvError: Nothing can be played, and it is not the policy's fault, nor the environment's.
        """
        self._about.began, self._began = time.time(), time.monotonic()
        await self._runner.run()
        return self.report()

    @property
    def episodes(self) -> list[Episode]:
        """What was played so far, as it ended."""
        return self._runner.episodes

    @property
    def players(self) -> int:
        """How many episodes are played at once: fewer than asked for where the server was full."""
        return self._runner.players

    def close(self) -> None:
        """The policy is not needed any more."""
        self._policy.close()

    def report(self) -> Report:
        """What was found so far."""
        episodes = sorted(self.episodes, key=lambda episode: self._order[episode.key])
        self._about.seconds = round(time.monotonic() - self._began, 3)
        summary = summary_of(episodes, len(self._order), self._about.success_at)
        return Report(
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
) -> Report:
    """Plays a policy in an environment: `openenv eval` for Python.

    Args:
        policy: A function, class or object, as `UserPolicy` takes it, or `module:function`; or one made already.
        cases: Seeds, or cases of tasks (`cases_of_tasks`).
        base_url: Address of the server.
        env: In its place, an `Environment` class, which is stepped in this process.
        app: In its place, an app made by `create_app`.
        concurrency: Episodes at once, each in a session of its own.
        max_steps: After so many steps an episode is over.
        retries: How often an episode that was lost to the infrastructure is played again, with the same seed.
        success_at: The least return that is a success; None: what the environment says.
        client: Further arguments of `GenericEnvClient`: `api_key`, `message_timeout_s`, `record`.

    Raises:
        OpenEnvError: Nothing can be played, and it is not the policy's fault, nor the environment's.
    """
    who = _policy_of(policy)
    connect = partial(GenericEnvClient, base_url, env=env, app=app, **client)
    played = [case if isinstance(case, Case) else Case(case) for case in cases]
    if not played:
        raise UsageError("there is nothing to play: give seeds, or cases")
    about = About(
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
    options = Options(concurrency, max_steps, retries, named=about.record is not None)
    try:
        return await Evaluation(connect, who, played, options, about).run()
    finally:
        if who is not policy:
            who.close()


def _policy_of(policy: Any) -> Policy:
    if isinstance(policy, str):
        return load_policy(policy)
    if hasattr(policy, "begin") and hasattr(policy, "attempts"):
        found: Policy = policy
        return found
    return UserPolicy(getattr(policy, "__name__", type(policy).__name__), policy)
