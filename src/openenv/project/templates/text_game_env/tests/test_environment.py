"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from my_env import MyAction, MyEnv, MyObservation, MyState
from my_env.server.house import DOORS, FURTHER
from my_env.server.my_env_environment import MyEnvironment

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, ResetRequired
from openenv.testing import EnvironmentConformance

Env = SyncEnvClient[MyAction, MyObservation, MyState]


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    def app(self) -> Any:
        return MyEnvironment

    def actions(self) -> list[dict[str, Any]]:
        return [{"command": command} for command in ("look", "go kitchen", "go cellar", "take key", "open chest")]


@pytest.fixture
def env() -> Iterator[Env]:
    """A client of an environment in this process, with the same calls and rules as over a network."""
    with MyEnv(env=MyEnvironment).sync() as client:
        yield client


def way(start: str, goal: str) -> list[str]:
    """The path from one room to another."""
    ways = [[start]]
    while ways[0][-1] != goal:
        ways = [*ways[1:], *([*ways[0], room] for room in DOORS[ways[0][-1]])]
    return ways[0][1:]


def test_every_story_can_be_won(env: Env) -> None:
    for seed in range(20):
        env.reset(seed=seed)
        there = env.state()
        plan = [f"go {room}" for room in way("hall", there.key_room)] + ["take key"]
        plan += [f"go {room}" for room in way(there.key_room, there.chest_room)] + ["open chest"]
        results = [env.step(MyAction(command=command)) for command in plan]
        assert results[-1].terminated
        assert sum(result.reward or 0 for result in results) == 1.25


def test_the_chest_is_locked_without_the_key(env: Env) -> None:
    env.reset(seed=3)
    for room in way("hall", env.state().chest_room):
        env.step(MyAction(command=f"go {room}"))
    result = env.step(MyAction(command="OPEN   chest"))
    assert "locked" in result.observation.text
    assert not result.done


def test_nonsense_is_answered_and_the_story_goes_on(env: Env) -> None:
    first = env.reset(seed=1)
    result = env.step(MyAction(command="fly to the moon"))
    assert result.observation.commands == first.observation.commands
    assert result.reward == 0.0
    with pytest.raises(InvalidAction, match="command"):
        env.step(MyAction.model_construct(command="go " * 100))


def test_a_story_is_cut_short_after_twenty_turns(env: Env) -> None:
    env.reset(seed=1)
    results = [env.step(MyAction(command="look")) for _ in range(20)]
    assert [result.truncated for result in results] == [False] * 19 + [True]
    with pytest.raises(ResetRequired):
        env.step(MyAction(command="look"))


def test_the_same_seed_makes_the_same_house(env: Env) -> None:
    houses = []
    for seed in (7, 7, 8, 9, 10):
        env.reset(seed=seed)
        houses.append((env.state().key_room, env.state().chest_room))
    assert houses[0] == houses[1]
    assert len(set(houses)) > 1
    assert {room for house in houses for room in house} <= set(FURTHER)


def test_the_web_page_has_a_picture_and_a_button_for_each_command() -> None:
    environment = MyEnvironment()
    observation = environment.reset(seed=1)
    assert "you are here" in environment.render_web(observation)
    assert [label for label, _ in environment.web_actions(observation)] == observation.commands
