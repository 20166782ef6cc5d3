"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import isclose
from random import Random
from typing import Any, get_args

import pytest
from gridworld import GridworldAction, GridworldEnv, GridworldObservation, GridworldState
from gridworld.models import LARGEST, SMALLEST, Kind, Move
from gridworld.plot import Table, episode
from gridworld.server.generation import _plain, generate
from gridworld.server.gridworld_environment import GridworldEnvironment
from gridworld.server.level import Level
from gridworld.server.search import shortest_way
from gridworld.server.tasks import SPLITS

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, InvalidArgument, ResetRequired
from openenv.testing import EnvironmentConformance

Env = SyncEnvClient[GridworldAction, GridworldObservation, GridworldState]
KINDS: tuple[Kind, ...] = get_args(Kind)


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    def app(self) -> Any:
        return GridworldEnvironment

    def actions(self) -> list[dict[str, Any]]:
        return [{"move": move} for move in get_args(Move)]


@pytest.fixture
def env() -> Iterator[Env]:
    """A client of an environment in this process, with the same calls and rules as over a network."""
    with GridworldEnv(env=GridworldEnvironment).sync() as client:
        yield client


def walked(environment: GridworldEnvironment, moves: list[Move]) -> list[GridworldObservation]:
    return [environment.step(GridworldAction(move=move)) for move in moves]


def way_through(environment: GridworldEnvironment) -> list[Move]:
    assert environment._level is not None
    way = shortest_way(environment._level)
    assert way is not None
    return way


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [SMALLEST, 5, 8, LARGEST])
def test_every_level_has_a_way_and_it_is_worth_what_the_state_says(kind: Kind, size: int) -> None:
    environment = GridworldEnvironment(kind, size)
    for seed in range(30):
        environment.rng.seed(seed)
        environment.reset()
        way = way_through(environment)
        seen = walked(environment, way)
        assert seen[-1].terminated
        assert seen[-1].position == seen[-1].goal
        state = environment.state
        assert len(way) == state.optimal_steps >= min(size, 5)
        assert isclose(sum(float(each.reward or 0) for each in seen), state.optimal_return)
        assert isclose(state.return_so_far, state.optimal_return)


def test_the_shortest_way_is_as_short_as_a_search_of_all_ways() -> None:
    """Against all move sequences, in small levels."""
    for seed in range(25):
        level, way = generate(Random(seed), "door", SMALLEST)
        places = {(level.start, False)}
        steps = 0
        while not any(cell == level.goal for cell, _ in places):
            steps += 1
            there = {(level.after(cell, key, move), key) for cell, key in places for move in get_args(Move)}
            places = {(cell, key or cell == level.key) for cell, key in there if cell not in level.lava}
        assert len(way) == steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_without_obstacles_has_a_way_of_every_size(kind: Kind) -> None:
    for size in range(SMALLEST, LARGEST + 1):
        way = shortest_way(_plain(kind, size))
        assert way is not None
        assert len(way) >= size


def test_a_level_with_no_way_is_known_as_such() -> None:
    walls = frozenset({(0, 1), (1, 0), (1, 1)})
    assert shortest_way(Level(4, (0, 0), (3, 3), walls)) is None
    assert shortest_way(Level(4, (0, 0), (3, 3), frozenset(), lava=walls)) is None


def test_the_door_opens_with_the_key_alone() -> None:
    level = Level(4, (0, 0), (0, 3), frozenset((row, 2) for row in range(1, 4)), key=(3, 0), door=(0, 2))
    environment = GridworldEnvironment()
    environment.reset()
    environment._level, environment._cell = level, level.start
    seen = walked(environment, ["right", "right"])
    assert seen[-1].position == (0, 1)
    assert seen[-1].rows == [".@DG", "..#.", "..#.", "k.#."]
    seen = walked(environment, ["left", "down", "down", "down"])
    assert (seen[-1].has_key, round(float(seen[-1].reward or 0), 9)) == (True, 0.19)
    seen = walked(environment, ["up", "down"])
    assert seen[-1].reward == -0.01, "the key is worth something once"
    seen = walked(environment, ["right", "up", "up", "up", "right", "right"])
    assert seen[-2].rows[0] == "..@G"
    assert seen[-1].terminated
    assert round(float(seen[-1].reward or 0), 9) == 0.99


def test_lava_ends_the_walk() -> None:
    environment = GridworldEnvironment("lava")
    environment.reset()
    environment._level = Level(4, (0, 0), (3, 3), frozenset(), lava=frozenset({(0, 1)}))
    environment._cell = (0, 0)
    seen = environment.step(GridworldAction(move="right"))
    assert (seen.terminated, seen.done, seen.reward) == (True, True, -1.01)
    assert "Burnt" in environment.render_web(seen)
    with pytest.raises(ResetRequired):
        environment.step(GridworldAction(move="left"))


def test_a_walk_is_cut_short_and_says_so(env: Env) -> None:
    result = env.reset(seed=1, kind="open", size=4)
    assert result.observation.steps_left == 32
    # To and fro between two cells, of which neither is the goal.
    start, goal = result.observation.position, result.observation.goal
    wall: Move = "up" if start[0] == 0 else "down"
    del goal
    moves: list[Move] = []
    while not result.done:
        moves.append(wall if result.observation.position == start else opposite(moves[-1]))
        result = env.step(GridworldAction(move=moves[-1]))
    assert len(moves) == 32
    assert (result.truncated, result.terminated) == (True, False)
    with pytest.raises(ResetRequired):
        env.step(GridworldAction(move="up"))


def opposite(move: Move) -> Move:
    there: dict[Move, Move] = {"up": "down", "down": "up", "left": "right", "right": "left"}
    return there[move]


def test_the_same_seed_makes_the_same_level(env: Env) -> None:
    levels = [env.reset(seed=seed).observation.rows for seed in (7, 7, 8)]
    assert levels[0] == levels[1] != levels[2]


def test_a_task_is_the_same_level_for_every_seed_and_no_two_are_alike(env: Env) -> None:
    one, other = (env.reset(seed=seed, split="test", index=3).observation for seed in (1, 2))
    assert one == other
    assert env.state().task == "test/3"
    environment = GridworldEnvironment()
    seen = {
        split: {
            "\n".join(environment.reset(split=split, index=task["index"]).rows)
            for task in environment.get_task_range(split, 0, 150)
        }
        for split in SPLITS
    }
    assert [len(levels) for levels in seen.values()] == [150, 150]
    assert not seen["train"] & seen["test"]


def test_tasks_are_told() -> None:
    assert [split["name"] for split in GridworldEnvironment.list_splits()] == ["train", "test"]
    assert len(GridworldEnvironment.list_tasks("test")) == GridworldEnvironment.num_tasks("test") == 200
    assert GridworldEnvironment.get_task("train", 999) == {"id": "train/999", "split": "train", "index": 999}
    with pytest.raises(IndexError):
        GridworldEnvironment.get_task("train", 1000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kind": "ice"}, "kind must be open, lava or door, not 'ice'"),
        ({"kind": ["open"]}, "kind must be"),
        ({"size": 3}, "size must be 4 to 16"),
        ({"size": "8"}, "size must be 4 to 16"),
        ({"size": 10**9}, "size must be 4 to 16"),
        ({"split": "valid"}, "no split 'valid': there are train, test"),
        ({"split": ["train"]}, "no split"),
        ({"split": "test", "index": 200}, "there are 200, from 0 to 199"),
        ({"index": 1.5}, "no task 1.5"),
    ],
)
def test_a_level_that_is_not_there_is_the_callers_mistake(env: Env, arguments: dict[str, Any], said: str) -> None:
    first = env.reset(seed=1)
    with pytest.raises(InvalidArgument, match=said):
        env.reset(**arguments)
    assert env.step(GridworldAction(move="up")).observation.steps_left == first.observation.steps_left - 1


def test_a_move_that_is_none_is_no_action(env: Env) -> None:
    env.reset(seed=1)
    with pytest.raises(InvalidAction, match="move"):
        env.step(GridworldAction.model_construct(move="jump"))


def test_a_copy_goes_its_own_way() -> None:
    environment = GridworldEnvironment()
    environment.reset()
    way = way_through(environment)
    walked(environment, way[:2])
    fork = copy.deepcopy(environment)
    seen = walked(fork, way[2:])
    assert seen[-1].terminated
    assert environment.state.step_count == 2
    assert walked(environment, way[2:]) == seen
    assert fork.reset().rows == environment.reset().rows, "their random numbers go on alike"


def test_the_web_page_has_a_picture_and_arrows_and_no_script() -> None:
    environment = GridworldEnvironment()
    seen = environment.reset()
    drawn = environment.render_web(seen)
    assert drawn.count("<rect x=") >= 64
    assert "<script" not in drawn
    assert [action["move"] for _, action in environment.web_actions(seen)] == ["up", "left", "right", "down"]
    last = walked(environment, way_through(environment))[-1]
    assert "reached" in environment.render_web(last)
    assert environment.web_actions(last) == ()


def test_a_table_learns_the_way(env: Env) -> None:
    """The learner of plot.py, in a small level."""
    table = Table(seed=1)
    rewards = [episode(env, table, split="train", index=0, size=5) for _ in range(150)]
    table.curious = 0.0
    learned = [episode(env, table, split="train", index=0, size=5) for _ in range(10)]
    assert sum(rewards[:10]) / 10 < 0 < env.state().optimal_return
    assert isclose(learned[-1], env.state().optimal_return)
