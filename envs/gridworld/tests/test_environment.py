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
from gridworld.server.search import shortest_path
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


def walk(environment: GridworldEnvironment, moves: list[Move]) -> list[GridworldObservation]:
    return [environment.step(GridworldAction(move=move)) for move in moves]


def path_through(environment: GridworldEnvironment) -> list[Move]:
    assert environment._level is not None
    path = shortest_path(environment._level)
    assert path is not None
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [SMALLEST, 5, 8, LARGEST])
def test_the_shortest_path_of_every_level_has_the_optimal_return(kind: Kind, size: int) -> None:
    environment = GridworldEnvironment(kind, size)
    for seed in range(30):
        environment.rng.seed(seed)
        environment.reset()
        path = path_through(environment)
        seen = walk(environment, path)
        assert seen[-1].terminated
        assert seen[-1].position == seen[-1].goal
        state = environment.state
        assert len(path) == state.optimal_steps >= min(size, 5)
        assert isclose(sum(float(each.reward or 0) for each in seen), state.optimal_return)
        assert isclose(state.return_so_far, state.optimal_return)


def test_the_shortest_path_is_as_short_as_a_search_of_all_moves() -> None:
    """Against all move sequences, in small levels."""
    for seed in range(25):
        level, path = generate(Random(seed), "door", SMALLEST)
        places = {(level.start, False)}
        steps = 0
        while not any(cell == level.goal for cell, _ in places):
            steps += 1
            there = {(level.after(cell, key, move), key) for cell, key in places for move in get_args(Move)}
            places = {(cell, key or cell == level.key) for cell, key in there if cell not in level.lava}
        assert len(path) == steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_without_obstacles_has_a_path_in_every_size(kind: Kind) -> None:
    for size in range(SMALLEST, LARGEST + 1):
        path = shortest_path(_plain(kind, size))
        assert path is not None
        assert len(path) >= size


def test_a_blocked_level_has_no_path() -> None:
    walls = frozenset({(0, 1), (1, 0), (1, 1)})
    assert shortest_path(Level(4, (0, 0), (3, 3), walls)) is None
    assert shortest_path(Level(4, (0, 0), (3, 3), frozenset(), lava=walls)) is None


def test_the_door_opens_with_the_key_alone() -> None:
    level = Level(4, (0, 0), (0, 3), frozenset((row, 2) for row in range(1, 4)), key=(3, 0), door=(0, 2))
    environment = GridworldEnvironment()
    environment.reset()
    environment._level, environment._cell = level, level.start
    seen = walk(environment, ["right", "right"])
    assert seen[-1].position == (0, 1)
    assert seen[-1].rows == [".@DG", "..#.", "..#.", "k.#."]
    seen = walk(environment, ["left", "down", "down", "down"])
    assert (seen[-1].has_key, round(float(seen[-1].reward or 0), 9)) == (True, 0.19)
    seen = walk(environment, ["up", "down"])
    assert seen[-1].reward == -0.01, "the key earns its reward once"
    seen = walk(environment, ["right", "up", "up", "up", "right", "right"])
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


def test_an_episode_is_truncated_after_its_last_step(env: Env) -> None:
    result = env.reset(seed=1, kind="open", size=4)
    assert result.observation.steps_left == 32
    # The walker moves between two cells, neither of which is the goal.
    start = result.observation.position
    wall: Move = "up" if start[0] == 0 else "down"
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


def test_the_same_seed_gives_the_same_level(env: Env) -> None:
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


def test_the_task_api_lists_the_tasks() -> None:
    assert [split["name"] for split in GridworldEnvironment.list_splits()] == ["train", "test"]
    assert len(GridworldEnvironment.list_tasks("test")) == GridworldEnvironment.num_tasks("test") == 200
    assert GridworldEnvironment.get_task("train", 999) == {"id": "train/999", "split": "train", "index": 999}
    with pytest.raises(IndexError):
        GridworldEnvironment.get_task("train", 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_an_invalid_option_raises_and_the_episode_continues(
    env: Env, arguments: dict[str, Any], message: str
) -> None:
    first = env.reset(seed=1)
    with pytest.raises(InvalidArgument, match=message):
        env.reset(**arguments)
    assert env.step(GridworldAction(move="up")).observation.steps_left == first.observation.steps_left - 1


def test_an_unknown_move_is_an_invalid_action(env: Env) -> None:
    env.reset(seed=1)
    with pytest.raises(InvalidAction, match="move"):
        env.step(GridworldAction.model_construct(move="jump"))


def test_a_fork_is_independent() -> None:
    environment = GridworldEnvironment()
    environment.reset()
    path = path_through(environment)
    walk(environment, path[:2])
    fork = copy.deepcopy(environment)
    seen = walk(fork, path[2:])
    assert seen[-1].terminated
    assert environment.state.step_count == 2
    assert walk(environment, path[2:]) == seen
    assert fork.reset().rows == environment.reset().rows, "the random numbers of both continue alike"


def test_the_web_page_has_a_picture_and_arrows_and_no_script() -> None:
    environment = GridworldEnvironment()
    seen = environment.reset()
    drawn = environment.render_web(seen)
    assert drawn.count("<rect x=") >= 64
    assert "<script" not in drawn
    assert [action["move"] for _, action in environment.web_actions(seen)] == ["up", "left", "right", "down"]
    last = walk(environment, path_through(environment))[-1]
    assert "reached" in environment.render_web(last)
    assert environment.web_actions(last) == ()


def test_a_table_learns_the_shortest_path(env: Env) -> None:
    """The learner of plot.py, in a small level."""
    table = Table(seed=1)
    rewards = [episode(env, table, split="train", index=0, size=5) for _ in range(150)]
    table.exploration_rate = 0.0
    learned = [episode(env, table, split="train", index=0, size=5) for _ in range(10)]
    assert sum(rewards[:10]) / 10 < 0 < env.state().optimal_return
    assert isclose(learned[-1], env.state().optimal_return)
