"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from my_env import MyAction, MyEnv, MyObservation, MyState
from my_env.server.my_env_environment import MyEnvironment

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, ResetRequired
from openenv.testing import EnvironmentConformance

Env = SyncEnvClient[MyAction, MyObservation, MyState]


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    def app(self) -> Any:
        return MyEnvironment


@pytest.fixture
def env() -> Iterator[Env]:
    """A client of an environment in this process, with the same calls and rules as over a network."""
    with MyEnv(env=MyEnvironment).sync() as client:
        yield client


def balanced(seen: MyObservation) -> MyAction:
    """A push in the direction in which the pole falls, which keeps it up for a long time."""
    return MyAction(push="right" if seen.pole_angle + 0.5 * seen.pole_velocity > 0 else "left")


def test_it_is_the_environment_of_gymnasium(env: Env) -> None:
    original = gymnasium.make("CartPole-v1")
    seen, _ = original.reset(seed=7)
    assert env.reset(seed=7).observation.cart_position == seen[0]
    seen, *_ = original.step(1)
    assert env.step(MyAction(push="right")).observation.pole_velocity == seen[3]
    original.close()


def test_a_pole_that_is_always_pushed_one_way_falls(env: Env) -> None:
    result = env.reset(seed=1)
    while not result.done:
        result = env.step(MyAction(push="left"))
    assert result.terminated
    assert env.state().step_count < 20
    with pytest.raises(ResetRequired):
        env.step(MyAction(push="left"))


def test_the_time_is_up_after_500_steps(env: Env) -> None:
    result = env.reset(seed=1)
    total = 0.0
    while not result.done:
        result = env.step(balanced(result.observation))
        total += result.reward or 0.0
    assert result.truncated
    assert not result.terminated
    assert total == 500.0


def test_what_is_no_push_is_refused(env: Env) -> None:
    env.reset()
    with pytest.raises(InvalidAction, match="push"):
        env.step(MyAction.model_construct(push="up"))


def test_the_web_page_has_a_picture() -> None:
    environment = MyEnvironment()
    upright = environment.render_web(environment.reset(seed=1))
    seen = [environment.step(MyAction(push="left")) for _ in range(5)]
    leaning = environment.render_web(seen[-1])
    assert upright.startswith("<svg")
    assert upright != leaning
    environment.close()
