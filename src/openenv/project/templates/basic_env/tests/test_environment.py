"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


def test_halving_finds_every_number(env: Env) -> None:
    for seed in range(20):
        result = env.reset(seed=seed)
        low, high = 1, 100
        while not result.done:
            guess = (low + high) // 2
            result = env.step(MyAction(guess=guess))
            if result.observation.hint == "higher":
                low = guess + 1
            else:
                high = guess - 1
        assert result.terminated
        assert result.reward == 1.0


def test_a_game_is_cut_short_after_ten_guesses(env: Env) -> None:
    env.reset(seed=1)
    wrong = 1 if env.state().secret > 1 else 2
    results = [env.step(MyAction(guess=wrong)) for _ in range(10)]
    assert [result.done for result in results] == [False] * 9 + [True]
    assert results[-1].truncated
    assert not results[-1].terminated
    with pytest.raises(ResetRequired):
        env.step(MyAction(guess=wrong))


def test_the_same_seed_is_the_same_number(env: Env) -> None:
    secrets = []
    for seed in (7, 7, 8):
        env.reset(seed=seed)
        secrets.append(env.state().secret)
    assert secrets[0] == secrets[1] != secrets[2]


def test_what_is_no_number_of_the_game_is_refused(env: Env) -> None:
    env.reset()
    with pytest.raises(InvalidAction, match="guess"):
        env.step(MyAction.model_construct(guess=101))
