"""A served environment as a taskset and a harness of verifiers, with their own agents, traces and interception."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..model_server import ModelReply, model_server
from .environments import counter_app, served

pytest.importorskip("verifiers.v1", reason="verifiers pins packages that other trainers have in another version")

import verifiers.v1 as vf
from verifiers.v1.envs.single_agent import SingleAgentEnvConfig

from openenv.adapters.verifiers import ServedConfig, ServedHarnessConfig

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # their own warnings

MODULE = """
from openenv.adapters.verifiers import ServedHarness, ServedTaskset

__all__ = ["ServedHarness", "ServedTaskset"]
"""


def counting(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Calls the tool with 4."""
    return ModelReply(calls=[(tools[0]["function"]["name"], json.dumps({"by": 4}))])


def cross(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    return ModelReply(calls=[(tools[0]["function"]["name"], json.dumps({"by": 4, "mood": "bad"}))])


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "counter_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setenv("TEST_KEY", "secret")
    return "counter_env"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield f"http://{at}"


def episode(plugin: str, address: str, policy: Any, **agent: Any) -> vf.Trace:
    """The trace of the second task."""
    with model_server(policies={"player": policy}) as endpoint:
        config = vf.AgentConfig(
            harness=ServedHarnessConfig(id=plugin),
            runtime=vf.SubprocessConfig(),
            model="player",
            client=vf.EvalClientConfig(base_url=f"{endpoint.url}/v1", api_key_var="TEST_KEY"),
            **agent,
        )
        (_, task) = load(plugin, address)

        async def run() -> vf.Trace:
            async with vf.make_agent(config) as player:
                return await player.run(task)

        return asyncio.run(run())


def load(plugin: str, address: str) -> list[Any]:
    from verifiers.v1.utils.loaders import load_taskset

    return [*load_taskset(ServedConfig(id=plugin, base_url=address, seeds=[3, 7]))]


def test_a_trace_has_the_conversation_the_tool_calls_and_the_return(plugin: str, address: str) -> None:
    trace = episode(plugin, address, counting)

    assert trace.ok, trace.errors
    assert trace.reward == 12.0
    (branch,) = trace.branches
    turns = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message.role for message in branch.messages] == turns
    assert branch.messages[3].content == '{"total":4}'


def test_the_tasks_are_the_seeds(plugin: str, address: str) -> None:
    assert [task.data.reset for task in load(plugin, address)] == [{"seed": 3}, {"seed": 7}]


def test_a_failure_is_an_error_and_no_reward(plugin: str, address: str) -> None:
    trace = episode(plugin, address, cross)

    assert not trace.ok
    assert "bad mood" in trace.errors[-1].message
    assert not trace.rewards


def test_a_limit_of_verifiers_keeps_what_was_earned(plugin: str, address: str) -> None:
    trace = episode(plugin, address, counting, max_turns=2)

    assert trace.ok, trace.errors
    assert trace.stop_condition
    assert trace.reward == 8.0


def test_a_module_with_both_is_an_environment_of_verifiers(plugin: str, address: str) -> None:
    from verifiers.v1.configs.env import default_agent_harness

    assert default_agent_harness(plugin) == ServedHarnessConfig(id=plugin)
    config = SingleAgentEnvConfig(taskset=ServedConfig(id=plugin, base_url=address))
    assert len([*vf.SingleAgentEnv(config).taskset]) == 10
