"""An environment of verifiers as one of ours: its tasks, tools, users and rewards, in rollouts."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from openenv.rollouts import FunctionModel, Rollout, RolloutOutcome, RolloutTask, rollouts

from ..model_server import ModelReply, model_server
from .environments import served

vf = pytest.importorskip("verifiers.v1", reason="verifiers pins packages that other trainers have in another version")

from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: E402

from openenv.adapters.verifiers_environment import verifiers_environment  # noqa: E402
from openenv.errors import UsageError  # noqa: E402
from openenv.project.target import load  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # their own warnings

SUMS = '''
import verifiers.v1 as vf

class SumData(vf.TaskData):
    left: int
    right: int

class SumState(vf.State):
    calls: int = 0

class CalculatorConfig(vf.ToolsetConfig):
    pass

class Calculator(vf.Toolset[CalculatorConfig, SumState]):
    @vf.tool
    async def add(self, left: int, right: int) -> int:
        """Adds two numbers."""
        self.state.calls += 1
        return left + right

class SumTask(vf.Task[SumData, SumState]):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(CalculatorConfig())]

    @vf.reward
    async def right_answer(self, task, trace) -> float:
        if trace.last_reply == "fail":
            raise RuntimeError("the judge is out")
        return float(trace.last_reply.strip() == str(task.left + task.right))

    @vf.reward(weight=0.5)
    async def used_the_tool(self, trace) -> float:
        return float(trace.state.calls > 0)

class SumConfig(vf.TasksetConfig):
    split: str = "train"

class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for number in range(3 if self.config.split == "train" else 1):
            data = SumData(prompt=f"What is {number} + 40?", system_prompt="Be brief.", left=number, right=40)
            yield SumTask(data, self.config.task)

__all__ = ["SumTaskset"]
'''

TALK = """
import itertools
import verifiers.v1 as vf

class TalkTask(vf.Task[vf.TaskData]):
    pass

class TalkEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class TalkEnv(vf.Env[TalkEnvConfig]):
    async def run(self, task, agents):
        said = []
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and len(said) < 3:
                said.append(segment.last_reply)
                if len(said) < 3:
                    segment = await interaction.turn(f"You said {segment.last_reply}. More?")
        interaction.trace.record_reward("words", float(len(set(said))))

class TalkTaskset(vf.Taskset[TalkTask, vf.TasksetConfig]):
    INFINITE = True
    def load(self):
        for number in itertools.count():
            yield TalkTask(vf.TaskData(prompt=f"Topic {number}"), self.config.task)

__all__ = ["TalkEnv", "TalkTaskset"]
"""


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"their_sums": SUMS, "their_talk": TALK}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


def played(target: str, policy: Any, tasks: list[RolloutTask]) -> list[Rollout]:
    async def play() -> list[Rollout]:
        found = []
        async for group in rollouts(f"http://{address}", FunctionModel(policy), tasks, sessions=2):
            found += group.rollouts + group.failed
        return sorted(found, key=lambda rollout: rollout.task.index or 0)

    with served(load(target)) as address:
        return asyncio.run(play())


def train(*indices: int) -> list[RolloutTask]:
    return [RolloutTask(split="train", index=index) for index in indices]


def adds_by_tool(messages: Any) -> Any:
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    number = int(messages[-1]["content"].split(" + ")[0].split()[-1])
    function = {"name": "calculator_add", "arguments": json.dumps({"left": number, "right": 40})}
    calls = [{"id": "a", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_tools_rewards_and_tasks_are_theirs() -> None:
    first, second = played("verifiers:their_sums", adds_by_tool, train(0, 2))

    assert [rollout.outcome for rollout in (first, second)] == [RolloutOutcome.TERMINATED] * 2, first.failure
    assert [first.reward, second.reward] == [1.5, 1.5]
    assert second.rubric == {"right_answer": 1.0, "used_the_tool": 0.5}
    assert [turn.steps[0].observation.get("tool_name") for turn in second.turns] == ["calculator_add", None]
    (tool,) = second.tools
    assert tool["function"]["name"] == "calculator_add"
    assert "What is 2 + 40?" in str(second.turns[0].prompt)
    assert "Be brief." in str(second.turns[0].prompt)


def test_a_simulated_user_goes_on_for_several_turns() -> None:
    (rollout,) = played("verifiers:their_talk?limit=5", lambda messages: f"word {len(messages)}", train(4))

    assert rollout.reward == 3.0, rollout.failure
    assert len(rollout.turns) == 3
    assert rollout.turns[1].steps[0].observation["text"].endswith("More?")


def test_a_reward_that_fails_is_a_failure_without_a_return() -> None:
    (rollout,) = played("verifiers:their_sums", lambda messages: "fail", train(0))

    assert rollout.outcome is RolloutOutcome.ENVIRONMENT_FAILED
    assert rollout.reward is None
    assert rollout.failure is not None
    assert "the judge is out" in rollout.failure.message


def test_the_configuration_chooses_the_split() -> None:
    made = verifiers_environment("their_sums", split="test")

    assert made.list_splits() == [{"name": "test", "type": "test"}]
    assert made.num_tasks("test") == 1


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("verifiers:there_is_none", "cannot load 'there_is_none'"),
        ("verifiers:their_talk", "have no end"),
        ("verifiers:their_sums?tempo=3", "tempo"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(target: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load(target)


UV = f"""#!/bin/sh
[ "$1" = sync ] || echo {sys.executable}
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of uv, which installs what programs of verifiers need: they run with this interpreter."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def original(index: int, policy: Any) -> dict[str, float]:
    """The rewards of the task in verifiers' own program."""

    async def play() -> Any:
        player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        environment = load_environment(resolve_env_config({"taskset": {"id": "their_talk"}, "player": player}))
        task = [*environment.taskset.take(index + 1)][index]
        client = vf.EvalClientConfig(base_url=f"{server.url}/v1", api_key_var="-")
        async with environment.serving():
            return await environment.run_episode(task, vf.ModelContext(model="policy", client=client))

    with model_server(policies={"policy": lambda messages, tools: ModelReply(policy(messages))}) as server:
        (trace,) = asyncio.run(play()).traces
    return {name: reward.value for name, reward in trace.rewards.items() if reward is not None}


@pytest.mark.usefixtures("uv")
def test_it_is_equal_to_the_original_step_by_step() -> None:
    read: list[Any] = []

    def policy(messages: Any) -> str:
        # Rollouts begin with a system prompt of their own.
        read.append([message["content"] for message in messages if message["role"] != "system"])
        return f"word {len(read[-1])}"

    rewards = original(4, policy)
    theirs, read = read, []
    (rollout,) = played("verifiers:their_talk?limit=5", policy, train(4))
    assert rollout.rubric == rewards == {"words": 3.0}
    assert read == theirs
    assert len(read) == 3
