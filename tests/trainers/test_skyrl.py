"""A served environment in SkyRL-Gym: several turns, tools, failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from openenv.errors import ConnectionFailed, EnvironmentFailed, ModelFailed

from .environments import counter_app, served
from .tiny import call_token

skyrl_gym: Any = pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed: make test-trainers")

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield f"http://{at}"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    skyrl_gym.register("openenv", "openenv.adapters.skyrl:SkyRLEnv")
    yield
    skyrl_gym.envs.registration.registry.pop("openenv")


def made(address: str, **extras: Any) -> Any:
    return skyrl_gym.make("openenv", env_config={"base_url": address}, extras=extras)


def test_an_episode_has_turns_rewards_and_an_end(address: str) -> None:
    with made(address, task={"arguments": {"start": 1}}) as env:
        messages, facts = env.init([{"role": "user", "content": "ignored"}])
        assert [message["role"] for message in messages] == ["system", "user"]
        assert messages[-1]["content"] == '{"total":1}'
        assert [tool["function"]["name"] for tool in facts["tools"]] == ["count"]

        first = env.step(call_token("count", {"by": 4}))
        assert (first["reward"], first["done"]) == (4.0, False)
        assert first["observations"][0]["role"] == "tool"
        assert first["observations"][0]["content"] == '{"total":5}'

        last = env.step(call_token("count", {"by": 5}))
        assert (last["reward"], last["done"], last["observations"]) == (5.0, True, [])


def test_the_budget_of_turns_ends_an_episode(address: str) -> None:
    with made(address, max_turns=2) as env:
        env.init([])
        assert [env.step(call_token("count", {"by": 1}))["done"] for _ in range(2)] == [False, True]


def test_a_mistake_is_answered_and_too_many_raise(address: str) -> None:
    with made(address) as env:
        env.init([])
        answer = env.step(call_token("count", {"by": 99}))
        assert (answer["reward"], answer["done"]) == (0.0, False)
        assert "by" in answer["observations"][0]["content"]
        assert answer["metadata"]["errors"]
        env.step("I will not count.")
        with pytest.raises(ModelFailed, match="max_invalid"):
            env.step("I will not count.")


def test_a_failure_raises_and_gives_no_reward(address: str) -> None:
    with made(address) as env:
        env.init([])
        with pytest.raises(EnvironmentFailed, match="bad mood"):
            env.step(call_token("count", {"by": 1, "mood": "bad"}))


def test_a_missing_server_is_one_clear_error() -> None:
    with made("http://127.0.0.1:9") as env, pytest.raises(ConnectionFailed):
        env.init([])
