"""What is asked for: an evaluation in the words of its command, before anybody knows the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import __version__
from ..client import GenericEnvClient
from ..errors import InvalidArgument
from ..recording import check_folder
from .cases import MOST_SEED, Case, cases_of_seeds, cases_of_tasks, derived_seeds, parse_seeds
from .episode import Episode
from .evaluation import Evaluation
from .policy import Policy, load_policy
from .random_policy import RandomPolicy
from .report import About
from .runner import Options
from .served import WAIT_S, Served

__all__ = ["EPISODES", "RANDOM", "Request"]

EPISODES = 100
RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An evaluation.

    Attributes:
        target: What is evaluated, in words.
        policy: `module:function`, or `random`.
        episodes: How many; None: as many as there are seeds or tasks, and 100 where neither says.
        seeds: As `parse_seeds` takes them; None: derived from `seed`.
        seed: From which seeds are derived.
        split: Whose tasks are played, in place of seeds.
        repeats: How often each task is.
        timeout_s: Seconds for each call of the environment.
        success_at: The least return that is a success; None: what the environment says.
        record: The folder for the episodes; None: they are not recorded.
        options: How they are played.

    Raises:
        UsageError: The values do not go together, or nothing can be recorded there.
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
    options: Options

    def __post_init__(self) -> None:
        if self.seeds is not None and self.split is not None:
            raise InvalidArgument("--seeds and --split: give seeds, or a split whose tasks have seeds of their own")
        if self.repeats > 1 and self.split is None:
            raise InvalidArgument(
                "--repeats is for tasks (--split): for more episodes give --episodes or more --seeds"
            )
        if not 0 <= self.seed <= MOST_SEED:
            raise InvalidArgument(f"--seed must be from 0 to {MOST_SEED}")
        if self.split is None:
            self._seeded()
        if self.record is not None:
            check_folder(self.record)

    def chosen_policy(self) -> Policy | None:
        """The policy; None: it can be made only when the server is known.

        Raises:
            UsageError: There is no such policy.
            ImportFailed: Its module cannot be imported.
        """
        return None if self.policy == RANDOM else load_policy(self.policy)

    def prepare(
        self, served: Served, policy: Policy | None, heard: Callable[[Episode], None] = lambda episode: None
    ) -> Evaluation:
        """The evaluation, with a server that runs.

        Args:
            served: The server.
            policy: What `chosen_policy` gave.
            heard: Called after each episode.

        Raises:
            OpenEnvError: The server cannot be reached, or has no such split.
        """
        given: dict[str, Any] = {} if self.record is None else {"record": self.record}
        given |= {"api_key": served.api_key, "message_timeout_s": self.timeout_s, "wait_s": WAIT_S}
        connect = partial(GenericEnvClient, served.url, **given)
        about = About(
            target=self.target,
            environment=served.environment(),
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
        chosen = policy or RandomPolicy(served.action_schema(), served.tools())
        return Evaluation(connect, chosen, self._cases(served), self.options, about, heard)

    def _cases(self, served: Served) -> list[Case]:
        if self.split is None:
            return self._seeded()
        return cases_of_tasks(served.num_tasks(self.split), self.split, self.seed, self.episodes, self.repeats)

    def _seeded(self) -> list[Case]:
        if self.seeds is None:
            return cases_of_seeds(derived_seeds(self.seed, self.episodes or EPISODES), None)
        return cases_of_seeds(parse_seeds(self.seeds), self.episodes)
