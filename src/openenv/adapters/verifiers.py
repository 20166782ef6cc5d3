"""A served environment as a taskset and a harness of verifiers 0.4. Without verifiers, it raises `MissingExtra`.

verifiers finds both by the name of a module at the top level, so an environment is published as a module such as::

    # word_game_env.py
    from openenv.adapters.verifiers import ServedHarness, ServedTaskset

    __all__ = ["ServedHarness", "ServedTaskset"]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from ..errors import MissingExtra
from ..evals.server import EvalServer
from ..rollouts.engine import rollouts
from ..rollouts.groups import RolloutBudget
from ..rollouts.records import RolloutTask
from ..rollouts.vendor_models import OpenAIModel
from .verifiers_environment import verifiers_app

try:
    import verifiers.v1 as vf
except ModuleNotFoundError as missing:
    raise MissingExtra("verifiers", None) from missing

__all__ = [
    "ServedConfig",
    "ServedData",
    "ServedHarness",
    "ServedHarnessConfig",
    "ServedTask",
    "ServedTaskset",
    "verifiers_app",
]

_REWARD = "episode_return"


class ServedData(vf.TaskData):
    """A task.

    Attributes:
        base_url: URL of the server.
        reset: The fields of a `RolloutTask`.
    """

    base_url: str
    reset: dict[str, Any] = Field(default_factory=dict)


class ServedTask(vf.Task[ServedData]):
    """A task; the harness records its reward."""


class ServedConfig(vf.TasksetConfig):
    """Which tasks of a served environment to play.

    Attributes:
        base_url: URL of the server.
        split: Split with the tasks; None for an environment without tasks.
        seeds: Seeds of the tasks, without a split.
    """

    base_url: str = "http://localhost:8000"
    split: str | None = None
    seeds: list[int] = Field(default_factory=lambda: [*range(10)])


class ServedTaskset(vf.Taskset[ServedTask, ServedConfig]):
    """The tasks of a served environment."""

    def load(self) -> Iterator[ServedTask]:
        """Yields the tasks. Raises `ConnectionFailed` or `UsageError` if the server does not have them."""
        config = self.config
        if config.split is None:
            tasks = [RolloutTask(seed=seed) for seed in config.seeds]
        else:
            count = EvalServer(config.base_url, None).num_tasks(config.split)
            tasks = [RolloutTask(seed=index, split=config.split, index=index) for index in range(count)]
        for task in tasks:
            data = ServedData(name=task.name, prompt=task.name, base_url=config.base_url, reset=task.reset_arguments)
            yield ServedTask(data, config.task)


class ServedHarnessConfig(vf.HarnessConfig):
    """How far a rollout may go.

    Attributes:
        max_turns: Calls of the model.
    """

    max_turns: int = 20


class ServedHarness(vf.Harness[ServedHarnessConfig]):
    """Plays a rollout by the environment's chat view, in the process of verifiers. The prompt of a task is its name.

    The trace gets the reward `episode_return`. A rollout that failed is an error of the trace, without a reward.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: ServedData
    ) -> vf.ProgramResult:
        """Plays one episode with the model behind `endpoint`. Raises `HarnessError` if it failed."""
        task = RolloutTask(arguments=data.reset)
        budget = RolloutBudget(turns=self.config.max_turns)
        model = OpenAIModel(ctx.model, endpoint, secret, token_ids=False)
        try:
            async for group in rollouts(data.base_url, model, [task], budget=budget, sessions=1):
                (rollout,) = group.rollouts + group.failed
        finally:
            await model.aclose()
        stopped = trace.stop_condition is not None  # verifiers cut the rollout at a limit of its own
        if rollout.failure is not None and not stopped:
            raise vf.HarnessError(f"{rollout.outcome}: {rollout.failure.message}")
        rewards = [turn.reward for turn in rollout.turns if turn.reward is not None]
        if rewards:
            trace.record_reward(_REWARD, math.fsum(rewards))
        return vf.ProgramResult(exit_code=0, stdout=str(rollout.outcome), stderr="")
