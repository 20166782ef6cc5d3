"""Autoreset as Gymnasium has it: the same episodes, beside Gymnasium's own vector environment."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.environment import Environment
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State

gymnasium = pytest.importorskip("gymnasium")
np = pytest.importorskip("numpy")

# Each environment of the vector has episodes of its own length; odd ones are cut short, even ones end.
LENGTHS = (1, 2, 3, 5)
STEPS = 14


class Walk:
    """Counts steps, and episodes in the hundreds."""

    def __init__(self) -> None:
        self.episode = self.steps = 0
        self.length = 0

    def begin(self, length: int | None) -> int:
        self.length = length or self.length
        self.episode, self.steps = self.episode + 1, 0
        return 100 * self.episode

    def go(self, by: int) -> tuple[int, float, bool, bool]:
        self.steps += 1
        over = self.steps == self.length
        cut = self.length % 2 == 1
        return 100 * self.episode + self.steps, float(by), over and not cut, over and cut


class GymWalk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 10_000, (), np.int64)
    action_space = gymnasium.spaces.Discrete(100)

    def __init__(self, length):
        self.walk = Walk()
        self.length = length

    def reset(self, *, seed=None, options=None):
        return np.int64(self.walk.begin(self.length)), {}

    def step(self, action):
        position, reward, terminated, truncated = self.walk.go(int(action))
        return np.int64(position), reward, terminated, truncated, {}


class WalkAction(Action):
    by: int


class WalkObservation(Observation):
    position: int
    truncated: bool = False


class ServedWalk(Environment[WalkAction, WalkObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self.walk = Walk()

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> WalkObservation:
        return WalkObservation(position=self.walk.begin(seed))

    def step(self, action, timeout_s=None, **kwargs: Any) -> WalkObservation:
        position, reward, terminated, truncated = self.walk.go(action.by)
        return WalkObservation(position=position, reward=reward, done=terminated or truncated, truncated=truncated)

    @property
    def state(self) -> State:
        return State()


def action(step, number):
    return (7 * step + 3 * number) % 100


def of_gymnasium(mode):
    """What Gymnasium gives: position, reward, terminated, truncated, final position; one list for each step."""
    name = {"next_step": "NEXT_STEP", "same_step": "SAME_STEP", "disabled": "DISABLED"}[mode]
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda length=length: GymWalk(length) for length in LENGTHS],
        autoreset_mode=gymnasium.vector.AutoresetMode[name],
    )
    positions, _ = envs.reset()
    rows = [[(int(position), None) for position in positions]]
    for step in range(STEPS):
        positions, rewards, ends, cuts, infos = envs.step(
            np.array([action(step, number) for number in range(len(LENGTHS))])
        )
        finals = infos.get("final_obs", [None] * len(LENGTHS))
        rows.append(
            [
                (int(p), float(r), bool(e), bool(c), None if f is None else int(f))
                for p, r, e, c, f in zip(positions, rewards, ends, cuts, finals, strict=True)
            ]
        )
        over = ends | cuts
        if mode == "disabled" and over.any():
            positions, _ = envs.reset(options={"reset_mask": over})
            rows.append([(int(positions[number]), None) for number in np.flatnonzero(over)])
    envs.close()
    return rows


async def of_ours(mode):
    app = create_app(ServedWalk, WalkAction, WalkObservation, settings=ServerSettings())
    rows = []
    async with VectorEnvClient(GenericEnvClient, app=app, num_envs=len(LENGTHS), autoreset_mode=mode) as envs:
        results = await envs.reset(seeds=LENGTHS)
        rows.append([(result.observation["position"], result.reward) for result in results])
        resetting = [False] * len(LENGTHS)
        for step in range(STEPS):
            results = await envs.step([{"by": action(step, number)} for number in range(len(LENGTHS))])
            assert [result.error for result in results] == [None] * len(LENGTHS)
            row = []
            for number, result in enumerate(results):
                reward = result.reward
                if mode == "next_step" and resetting[number]:
                    assert reward is None
                    reward = 0.0  # where Gymnasium says 0, no reward was given
                final = (result.metadata or {}).get("final_observation")
                row.append(
                    (
                        result.observation["position"],
                        reward,
                        result.terminated,
                        result.truncated,
                        final and final["position"],
                    )
                )
            rows.append(row)
            resetting = [result.done for result in results]
            if mode == "disabled" and any(resetting):
                over = [number for number, done in enumerate(resetting) if done]
                rows.append([(r.observation["position"], r.reward) for r in await envs.reset(env_ids=over)])
    return rows


@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
async def test_episodes_are_those_of_gymnasium(mode):
    assert await of_ours(mode) == of_gymnasium(mode)
