"""A served environment as Tinker's `Env`, under tinker-cookbook's own rollouts."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from openenv.errors import EnvironmentFailed, UsageError
from openenv.rollouts import RolloutTask

from .environments import counter_app, served
from .tiny import call_token, tiny_tokenizer

pytest.importorskip("tinker_cookbook.rl.rollouts", reason="tinker-cookbook is not installed")

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

from openenv.adapters.tinker import TinkerGroup

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # their own warnings

CALLS = [call_token("count", {"by": 4}), call_token("count", {"by": 1, "mood": "bad"})]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield f"http://{at}"


class Says(TokenCompleter):
    """Samples the same tokens each time, and keeps the prompts."""

    def __init__(self, *ids: int) -> None:
        self.ids, self.prompts = list(ids), list[list[int]]()

    async def __call__(self, model_input: Any, stop: Any, **options: Any) -> TokensWithLogprobs:
        self.prompts.append(model_input.to_ints())
        return TokensWithLogprobs(tokens=self.ids, maybe_logprobs=[-0.5] * len(self.ids))


def saying(call: str) -> Says:
    tokenizer = tiny_tokenizer(CALLS)
    return Says(tokenizer.convert_tokens_to_ids(call), tokenizer.eos_token_id)


def group(address: str, **options: Any) -> TinkerGroup:
    task = RolloutTask(seed=7, arguments={"start": 1})
    return TinkerGroup(address, task, 2, partial(tiny_tokenizer, CALLS), **options)


def test_a_group_is_played_and_each_prompt_extends_what_was_sampled(address: str) -> None:
    policy = saying(CALLS[0])
    played = asyncio.run(do_group_rollout(group(address), policy))

    for trajectory in played.trajectories_G:
        assert [step.reward for step in trajectory.transitions] == [4.0, 4.0, 4.0]
        assert [step.episode_done for step in trajectory.transitions] == [False, False, True]
        prompts = [step.ob.to_ints() for step in trajectory.transitions]
        for before, after in pairwise(prompts):
            assert after[: len(before) + 2] == before + policy.ids
        (datum,) = trajectory_to_data(trajectory, 1.0)  # one sequence: no prefix is broken
        assert datum.model_input.length == len(prompts[-1]) + len(policy.ids) - 1


def test_the_budget_of_turns_ends_an_episode(address: str) -> None:
    played = asyncio.run(do_group_rollout(group(address, max_turns=2), saying(CALLS[0])))
    assert [trajectory.stop_reason for trajectory in played.trajectories_G] == ["max_turns"] * 2


def test_a_failure_raises_and_gives_no_reward(address: str) -> None:
    with pytest.raises(EnvironmentFailed, match="bad mood"):
        asyncio.run(do_group_rollout(group(address), saying(CALLS[1])))


def test_a_group_needs_a_seed_and_can_be_pickled(address: str) -> None:
    again = pickle.loads(pickle.dumps(group(address)))
    assert again.task.seed == 7
    again.task = RolloutTask()
    with pytest.raises(UsageError, match="seed"):
        asyncio.run(again.make_envs())
