"""A served environment as TorchRL's chat environment: turns, tools, ends, failures, its collector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openenv.errors import InvalidArgument, ModelFailed
from openenv.rollouts import RolloutTask

from .environments import counter_app, served
from .tiny import call_token

pytest.importorskip("torchrl", reason="torchrl is not installed: make test-trainers")

from torchrl.data.llm.history import History
from torchrl.modules.llm.policies.common import ChatHistory

from openenv.adapters.torchrl import OpenEnvChatEnv

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # TorchRL's own warnings

START = RolloutTask(arguments={"start": 1})
ADD = call_token("count", {"by": 4})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield f"http://{at}"


@pytest.fixture
def environment(address: str) -> Iterator[Callable[..., OpenEnvChatEnv]]:
    made: list[OpenEnvChatEnv] = []

    def make(*tasks: RolloutTask) -> OpenEnvChatEnv:
        made.append(OpenEnvChatEnv(address, tasks=tasks or itertools.repeat(START)))
        return made[-1]

    yield make
    for each in made:
        each.close(raise_if_closed=False)


def says(text: str) -> Callable[[Any], Any]:
    """A policy that always gives the same answer."""

    def policy(td: Any) -> Any:  # TorchRL knows what to pass by this name
        prompt = td["history"].prompt
        answer = History.from_chats([[{"role": "assistant", "content": text}]])
        return td.set("history", ChatHistory(prompt=prompt, full=prompt.extend(answer, inplace=False, dim=-1)))

    return policy


def test_an_episode_has_turns_rewards_and_an_end(environment: Callable[..., OpenEnvChatEnv]) -> None:
    env = environment()
    played = env.rollout(5, policy=says(ADD))
    assert played["next", "reward"].flatten().tolist() == [4.0, 4.0, 4.0]
    assert played["next", "terminated"].flatten().tolist() == [False, False, True]
    assert not played["next", "truncated"].any()
    last = played["next", "history"].prompt[0, -1]
    assert list(last.role) == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert last.content[3] == '{"total":5}'
    assert [tool["function"]["name"] for tool in env.tools] == ["count"]


def test_a_mistake_is_answered_and_too_many_raise(environment: Callable[..., OpenEnvChatEnv]) -> None:
    env = environment()
    once = env.rollout(1, policy=says("no call"))
    assert once["next", "history"].prompt[0, -1].role[-1] == "user"
    assert once["next", "reward"].item() == 0.0
    with pytest.raises(ModelFailed, match="no valid action"):
        env.rollout(9, policy=says("no call"))


def test_each_reset_takes_a_task_and_the_last_is_the_last(environment: Callable[..., OpenEnvChatEnv]) -> None:
    env = environment(START, RolloutTask(arguments={"start": 9}))
    assert env.rollout(9, policy=says(ADD)).shape[-1] == 3
    assert env.rollout(9, policy=says(ADD)).shape[-1] == 1
    with pytest.raises(InvalidArgument, match="run out"):
        env.reset()


def test_its_collector_plays_dialogs(environment: Callable[..., OpenEnvChatEnv]) -> None:
    from torchrl.collectors.llm import LLMCollector  # warns of its own parts

    collector = LLMCollector(
        environment,
        policy=says(ADD),
        dialog_turns_per_batch=6,
        total_dialog_turns=12,
        yield_completed_trajectories=False,
    )
    rewards = [reward for batch in collector for reward in batch["next", "reward"].flatten().tolist()]
    collector.shutdown()
    assert rewards == [4.0] * 12
