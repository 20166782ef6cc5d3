"""`RemoteVectorEnv` as the owner of a `BatchedEnvironment` that is not Gymnasium's, on real sockets."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from openenv import Array, BatchedEnvironment, create_app
from openenv.adapters.gymnasium import RemoteVectorEnv
from openenv.errors import InvalidAction, StepFailed, UsageError
from openenv.types import Action, Observation, State

from ...server.wires import eventually, served

pytestmark = pytest.mark.real

COUNT = 5


class Steer(Action):
    push: Annotated[np.ndarray, Array("float32", (2,), low=-1, high=1)]
    gear: Literal["slow", "fast"]


class Seen(Observation):
    at: Annotated[np.ndarray, Array("float32", (2,))]
    picture: Annotated[np.ndarray, Array("uint8", (2, 2))]
    laps: int
    lit: bool
    mood: Literal["calm", "glad"]


class Boats(BatchedEnvironment[Steer, Seen, State]):
    """Drives boats until they are far away. A seed above 100 fails in its second step."""

    num_envs = COUNT

    def __init__(self) -> None:
        super().__init__()
        self.at = np.zeros((COUNT, 2), np.float32)
        self.laps = np.zeros(COUNT, np.int64)
        self.fails = np.zeros(COUNT, bool)

    def reset(self, seeds: Any, mask: Any, wind: float = 0.0) -> Any:
        for index in np.flatnonzero(mask):
            self.at[index] = np.random.default_rng(seeds[index]).uniform(-1, 1, 2)
            self.fails[index] = (seeds[index] or 0) > 100
        self.laps[mask] = 0
        return self.seen(), {"wind": np.full(COUNT, wind)}

    def step(self, actions: Any, mask: Any) -> Any:
        if (self.fails & (self.laps == 1))[mask].any():
            raise ValueError("aground")
        speed = np.array([2 if gear == "fast" else 1 for gear in actions["gear"]], np.float32)
        self.at[mask] += (actions["push"] * speed[:, np.newaxis])[mask]
        self.laps[mask] += 1
        ends = np.abs(self.at).max(axis=1) > 3
        return self.seen(), self.at.sum(axis=1), ends, np.zeros(COUNT, bool), {"name": ["boat"] * COUNT}

    def seen(self) -> dict[str, Any]:
        return {
            "at": self.at.copy(),
            "picture": np.broadcast_to(self.laps.astype(np.uint8)[:, np.newaxis, np.newaxis], (COUNT, 2, 2)),
            "laps": self.laps.copy(),
            "lit": self.laps > 1,
            "mood": ["glad" if lap else "calm" for lap in self.laps],
        }


@pytest.fixture(scope="module")
def boats() -> Iterator[str]:
    with served(create_app(Boats)) as at:
        yield at


def moves(space: spaces.Space[Any], count: int) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(count)]


def test_each_field_has_its_space_and_its_array(boats: str) -> None:
    envs = RemoteVectorEnv(boats)
    single = envs.single_observation_space
    assert isinstance(single, spaces.Dict)
    assert single["at"] == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert single["picture"] == spaces.Box(0, 255, (2, 2), np.uint8)
    assert single["lit"] == single["mood"] == spaces.Discrete(2)
    assert envs.single_action_space == spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32), gear=spaces.Discrete(2))
    observation, infos = envs.reset(seed=1, options={"wind": 0.5})
    assert envs.observation_space.contains(observation)
    assert infos["wind"].tolist() == [0.5] * COUNT
    assert infos["_wind"].all()
    for actions in moves(envs.action_space, 4):
        observation, rewards, terminated, truncated, infos = envs.step(actions)
        assert envs.observation_space.contains(observation)
        assert rewards.dtype == np.float64
        assert terminated.dtype == truncated.dtype == np.bool_
        assert infos["name"].tolist() == ["boat"] * COUNT
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_it_plays_as_single_sessions_do(boats: str, mode: AutoresetMode) -> None:
    """The same seeds and actions, once as a batch, and once as sessions that share one."""
    batch = RemoteVectorEnv(boats, autoreset_mode=mode)
    sessions = RemoteVectorEnv(boats, COUNT - 1, autoreset_mode=mode)
    assert batch.num_envs == COUNT
    seeds = [3, 1, 4, 1, 5]
    first = [envs.reset(seed=seeds[: envs.num_envs])[0] for envs in (batch, sessions)]
    assert data_equivalence(rows(first[0]), first[1])
    ends = 0
    for step, actions in enumerate(moves(batch.action_space, 12)):
        mine = batch.step(actions)
        theirs = sessions.step({name: part[:-1] for name, part in actions.items()})
        ended = mine[2]
        ends += int(ended.sum())
        if mode is AutoresetMode.NEXT_STEP or not ended.any():
            assert data_equivalence(tuple(map(rows, mine[:4])), theirs[:4]), step
        if "final_obs" in theirs[4]:
            np.testing.assert_equal(mine[4]["final_obs"][:-1].tolist(), theirs[4]["final_obs"].tolist())
        if ended.any():  # the seeds of further episodes are random
            for envs in (batch, sessions) if mode is AutoresetMode.DISABLED else ():
                mask = ended[: envs.num_envs]
                if mask.any():
                    envs.reset(seed=seeds[: envs.num_envs], options={"reset_mask": mask})
            if mode is not AutoresetMode.DISABLED:
                break
    assert ends
    batch.close()
    sessions.close()


def rows(value: Any) -> Any:
    """All but the last episode."""
    return {name: rows(part) for name, part in value.items()} if isinstance(value, dict) else value[:-1]


def test_batches_of_some_are_single_sessions_and_an_owned_batch_has_none(boats: str) -> None:
    owner = RemoteVectorEnv(boats)
    for call in (owner.async_reset, lambda: owner.send(moves(owner.action_space, 1)[0])):
        with pytest.raises(UsageError, match="use reset and step, or give a smaller batch_size"):
            call()
    envs = RemoteVectorEnv(boats, batch_size=2)
    assert envs.num_envs == COUNT
    envs.async_reset(seed=1)
    observation, _, _, _, infos = envs.recv()
    np.testing.assert_equal(observation["at"], owner.reset(seed=1)[0]["at"][infos["env_id"]])
    owner.close()
    envs.close()


def test_a_reset_of_some_returns_the_observations_of_all(boats: str) -> None:
    envs = RemoteVectorEnv(boats, autoreset_mode="Disabled")
    envs.reset(seed=1)
    before = envs.step(moves(envs.action_space, 1)[0])[0]
    mask = np.arange(COUNT) < 2
    after, infos = envs.reset(seed=50, options={"reset_mask": mask})
    assert after["laps"].ravel().tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_equal(after["at"][~mask], before["at"][~mask])
    assert infos["_wind"].tolist() == mask.tolist()
    envs.close()


def test_functions_of_the_user_convert_each_episode(boats: str) -> None:
    seen = {
        "observation_space": spaces.Box(-9, 9, (1,), np.float32),
        "decode_observation": lambda fields: fields["at"][:1],
    }
    moved = {
        "action_space": spaces.Discrete(3),
        "encode_action": lambda member: {"push": [member - 1, 0], "gear": "slow"},
    }
    envs = RemoteVectorEnv(boats, **moved)
    first, _ = envs.reset(seed=1)
    second, *_ = envs.step(np.array([0, 1, 2, 1, 1]))
    assert np.allclose((second["at"] - first["at"])[:, 0], [-1, 0, 1, 0, 0])
    envs.close()
    envs = RemoteVectorEnv(boats, **seen)
    np.testing.assert_equal(envs.reset(seed=1)[0], first["at"][:, :1])
    envs.close()
    # With all four, no schema is read: these are single sessions, which share a batch.
    envs = RemoteVectorEnv(boats, COUNT, **moved, **seen)
    np.testing.assert_equal(envs.reset(seed=1)[0], first["at"][:, :1])
    envs.close()


def test_an_owner_that_nobody_holds_gives_its_session_back() -> None:
    app = create_app(Boats)
    with served(app) as at:
        envs = RemoteVectorEnv(at)
        envs.reset()
        assert app.state.openenv.active_sessions == 1
        del envs
        gc.collect()
        eventually(lambda: app.state.openenv.active_sessions == 0)


def test_a_failed_step_names_all_episodes_and_a_reset_begins_anew(boats: str) -> None:
    envs = RemoteVectorEnv(boats)
    envs.reset(seed=100)
    actions = moves(envs.action_space, 1)[0]
    envs.step(actions)
    with pytest.raises(StepFailed, match="aground") as caught:
        envs.step(actions)
    assert caught.value.data["env_ids"] == list(range(COUNT))
    envs.reset(seed=1)
    with pytest.raises(InvalidAction):
        envs.step({**actions, "push": actions["push"] * 9})
    envs.step(actions)
    envs.close()
