"""Environments that their clients step in their own process."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.environment import Environment
from openenv.errors import InvalidArgument, UsageError

from ..client.environments import CounterAction, CounterEnv, ThreadCounter


class Offset(ThreadCounter):
    """Begins where it is told to."""

    def __init__(self, first: int):
        super().__init__()
        self.first = first

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        observation = super().reset(*args, **kwargs)
        observation.total = self.first
        return observation


class Untyped(Environment):
    def reset(self, **kwargs):
        raise NotImplementedError

    def step(self, action, **kwargs):
        raise NotImplementedError

    @property
    def state(self):
        raise NotImplementedError


async def test_an_episode_without_a_server() -> None:
    async with CounterEnv(env=ThreadCounter) as env:
        await env.reset()
        assert (await env.step(CounterAction(by=2))).observation.total == 2


def test_an_episode_without_a_server_or_a_loop() -> None:
    with GenericEnvClient(env=ThreadCounter) as env:
        env.reset()
        assert env.step({"by": 3}).observation["total"] == 3


async def test_many_at_once_have_an_environment_each() -> None:
    async with VectorEnvClient(CounterEnv, env=ThreadCounter, num_envs=3) as envs:
        await envs.reset()
        results = await envs.step([CounterAction(by=number) for number in (1, 2, 3)])
        assert [result.observation.total for result in results if result.observation is not None] == [1, 2, 3]


async def test_arguments_of_the_environment() -> None:
    async with CounterEnv(env=functools.partial(Offset, 40)) as env:
        assert (await env.reset()).observation.total == 40


async def test_a_function_takes_its_types_from_the_client() -> None:
    async with CounterEnv(env=lambda: Offset(7)) as env:
        assert (await env.reset()).observation.total == 7


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (ThreadCounter(), "pass the class, env=ThreadCounter"),
        (7, "pass an Environment class"),
        (lambda: ThreadCounter(), "a function with a return annotation"),
        (Untyped, "types of Untyped are not declared"),
    ],
    ids=["an instance", "a number", "a function", "no types"],
)
def test_what_is_no_environment(env: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        GenericEnvClient(env=env)


def test_it_is_one_of_several_ways() -> None:
    with pytest.raises(InvalidArgument, match="needs one of"):
        CounterEnv("http://127.0.0.1:1", env=ThreadCounter)
