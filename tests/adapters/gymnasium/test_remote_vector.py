"""Served environments as a `gymnasium.vector.VectorEnv`, on real sockets, beside Gymnasium's own vector."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from openenv.adapters.gymnasium import RemoteEnv, RemoteVectorEnv, gymnasium_app
from openenv.environment import Environment
from openenv.errors import (
    ConnectionFailed,
    InvalidAction,
    InvalidArgument,
    OpenEnvError,
    ResetRequired,
    SessionLost,
    StepFailed,
    UsageError,
)
from openenv.server import create_app
from openenv.types import Action, Observation, State

from ...cli.process import serving
from ...server.wires import eventually, served
from ...server.workers.whereabouts import workers_of

pytestmark = pytest.mark.real

COUNT = 4
ROOT = Path(__file__).parents[3]
MODES = list(AutoresetMode)


class Patient(gymnasium.Env[Any, Any]):
    """Of an odd seed: Ctrl-C is pressed while its second episode begins, or while it takes its third step."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(2)

    def __init__(self, during: str, render_mode: str | None = None):
        self.during, self.render_mode = during, render_mode
        self.resets = self.steps = 0
        self.odd = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.odd = self.odd if seed is None else seed % 2 == 1
        self.resets, self.steps = self.resets + 1, 0
        self.wait(self.during == "reset" and self.resets == 2)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.wait(self.during == "step" and self.resets == 1 and self.steps == 3)
        return self.steps, 1.0, self.steps == 4, False, {}

    def wait(self, now: bool) -> None:
        if now and self.odd:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


gymnasium.register("openenv-tests/Patient-v0", Patient)


class Brief(gymnasium.Env[Any, Any]):
    """Every step is the last one; its action says how: 1 terminates, 2 truncates, 3 does both."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(4)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return int(self.np_random.integers(50)), {"begins": True}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        ends = {"how": int(action)} if action else {}
        return 50 + int(action), float(action), action in (1, 3), action in (2, 3), ends


gymnasium.register("openenv-tests/Brief-v0", Brief)


class Shades(gymnasium.Env[Any, Any]):
    """Large images, none like another, and episodes of different lengths. The action 3 fails."""

    observation_space: gymnasium.Space[Any] = spaces.Box(0, 255, (80, 80, 4), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.image(), {"seeded": seed is not None}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 3:
            raise ValueError("refused")
        self.steps += 1
        return self.image(), float(self.steps), bool(self.np_random.random() < 0.3), False, {}

    def image(self) -> Any:
        return self.np_random.integers(0, 256, (80, 80, 4), np.uint8)


gymnasium.register("openenv-tests/Shades-v0", Shades)


class NestedShades(Shades):
    """The same images in a Dict and a Tuple, next to few numbers."""

    large = spaces.Box(0, 255, (80, 80, 4), np.uint8)
    observation_space = spaces.Dict(
        {"pair": spaces.Tuple([large, spaces.Box(-1, 1, (2,), np.float32)]), "deep": spaces.Dict({"image": large})}
    )

    def image(self) -> Any:
        return {
            "pair": (super().image(), np.full(2, self.steps / 100, np.float32)),
            "deep": {"image": super().image()},
        }


gymnasium.register("openenv-tests/NestedShades-v0", NestedShades)


class Fuse(Environment[Action, Observation, State]):
    """Its third step fails where its seed is odd; no other gives a reward before the fifth, which ends it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def reset(self, seed: int | None = None, **kwargs: Any) -> Observation:
        self.seed, self.steps = seed or 0, 0
        if self.seed == 13:
            raise ValueError("thirteen")
        return Observation(metadata={"steps": 0})

    def step(self, action: Action, **kwargs: Any) -> Observation:
        self.steps += 1
        if self.steps == 3 and self.seed % 2:
            raise ValueError("burnt out")
        return Observation(
            metadata={"steps": self.steps}, done=self.steps == 5, reward=1.0 if self.steps == 5 else None
        )

    @property
    def state(self) -> State:
        return State()


class Verdict(Observation):
    terminated: bool = False
    truncated: bool = False


class Undecided(Environment[Action, Verdict, State]):
    """Its second step is the last one and says nothing of how; its first one says something, and is not the last.

    With the seed 7, an episode is over before it begins.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def reset(self, seed: int | None = None, **kwargs: Any) -> Verdict:
        self.seed, self.steps = seed or 0, 0
        return Verdict(done=self.seed == 7)

    def step(self, action: Action, **kwargs: Any) -> Verdict:
        self.steps += 1
        first = self.steps == 1
        return Verdict(done=not first, reward=self.steps, terminated=first and self.seed == 1, truncated=first)

    @property
    def state(self) -> State:
        return State()


FUSE: dict[str, Any] = {
    "observation_space": spaces.Discrete(1),
    "decode_observation": lambda fields: 0,
    "action_space": spaces.Discrete(2),
    "encode_action": lambda member: {},
}


@pytest.fixture(scope="module")
def fuse() -> Iterator[str]:
    with served(create_app(Fuse, Action, Observation, "fuse", max_concurrent_envs=64)) as at:
        yield at


@pytest.fixture(scope="module")
def cartpole() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1", max_episode_steps=23)) as at:
        yield at


@pytest.fixture
def fuses(fuse: str) -> Iterator[RemoteVectorEnv]:
    envs = RemoteVectorEnv(fuse, COUNT, autoreset_mode="Disabled", missing_reward=0.0, **FUSE)
    yield envs
    envs.close()


def near(env_id: str, mode: AutoresetMode, count: int = COUNT) -> SyncVectorEnv:
    def make() -> Any:
        return gymnasium.make(env_id, max_episode_steps=23)

    return SyncVectorEnv([make] * count, autoreset_mode=mode)


def assert_alike(ours: Any, theirs: Any) -> None:
    """The same values of the same types; an environment's own last observation may be a number of Python's."""
    *_, told = infos = [outcome[-1] for outcome in (ours, theirs) if isinstance(outcome, tuple)] or [{}]
    if "final_obs" in told:
        np.testing.assert_equal(*[info.pop("final_obs").tolist() for info in infos])
    assert data_equivalence(ours, theirs), f"{ours}\n{theirs}"


ENVS = ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0"]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_of_one_step_that_end_in_both_ways(mode: AutoresetMode) -> None:
    """The last step of a truncated episode may terminate it, too; then both are told."""
    with served(gymnasium_app("openenv-tests/Brief-v0")) as at:
        ours = RemoteVectorEnv(at, COUNT, autoreset_mode=mode)
        theirs = SyncVectorEnv([lambda: gymnasium.make("openenv-tests/Brief-v0")] * COUNT, autoreset_mode=mode)
        assert_alike(ours.reset(seed=3), theirs.reset(seed=3))
        actions = np.arange(COUNT)
        for _ in range(4):
            assert_alike(ours.step(actions), theirs.step(actions))
            if mode is AutoresetMode.DISABLED:
                given = {"reset_mask": np.ones(COUNT, np.bool_)}
                assert_alike(ours.reset(options=given), theirs.reset(options=dict(given)))
        ours.close()
        theirs.close()


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENVS)
def test_it_does_what_gymnasiums_own_does(env_id: str, mode: AutoresetMode, connections: int) -> None:
    with served(gymnasium_app(env_id, max_episode_steps=23)) as at:
        ours, theirs = (
            RemoteVectorEnv(at, COUNT, autoreset_mode=mode, connections=connections),
            near(env_id, mode),
        )
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"]
        theirs.action_space.seed(1)
        assert_alike(ours.reset(seed=3), theirs.reset(seed=3))
        for _ in range(60):
            actions = theirs.action_space.sample()
            outcome, expected = ours.step(actions), theirs.step(actions)
            assert_alike(outcome, expected)
            ended = outcome[2] | outcome[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                assert_alike(ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended}))
        ours.close()
        theirs.close()


@pytest.fixture(scope="module", params=[0, 64], ids=["frames", "shared memory"])
def shades(request: pytest.FixtureRequest) -> Iterator[str]:
    shared = {"OPENENV_SHARED_MEMORY_MB": str(request.param)}
    with serving(f"gymnasium:{__name__}:openenv-tests/Shades-v0", cwd=ROOT, **shared) as server:
        yield server.url


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_large_arrays_are_those_of_gymnasiums_own_and_stay_so(
    shades: str, mode: AutoresetMode, connections: int
) -> None:
    ours = RemoteVectorEnv(shades, COUNT, autoreset_mode=mode, connections=connections)
    theirs = SyncVectorEnv([lambda: gymnasium.make("openenv-tests/Shades-v0")] * COUNT, autoreset_mode=mode)
    kept = []  # every second result, and one row of others
    for count in range(2):
        assert_alike(ours.reset(seed=count), theirs.reset(seed=count))
        for step in range(20):
            outcome, expected = ours.step(np.zeros(COUNT, np.int64)), theirs.step(np.zeros(COUNT, np.int64))
            assert_alike(outcome, expected)
            assert outcome[0].flags.writeable
            part = ... if step % 2 else slice(1, 2)
            kept.append((outcome[0][part], expected[0][part]))
            ended = outcome[2] | outcome[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                outcome[0][:] = 0  # the caller's own
                assert_alike(ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended}))
                kept.pop()
    for array, same in kept:
        np.testing.assert_array_equal(array, same)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", MODES)
def test_large_arrays_in_dicts_and_tuples_are_those_of_gymnasiums_own(mode: AutoresetMode) -> None:
    name = "openenv-tests/NestedShades-v0"
    with served(gymnasium_app(name)) as address:
        ours = RemoteVectorEnv(address, COUNT, autoreset_mode=mode)
        theirs = SyncVectorEnv([lambda: gymnasium.make(name)] * COUNT, autoreset_mode=mode)
        kept = [(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])]
        for _ in range(12):
            outcome, expected = ours.step(np.zeros(COUNT, np.int64)), theirs.step(np.zeros(COUNT, np.int64))
            assert_alike(outcome, expected)
            kept.append((outcome[0], expected[0]))
            ended = outcome[2] | outcome[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                assert_alike(ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended}))
        ours.close()
    for observations, same in kept:
        assert data_equivalence(observations, same)
    theirs.close()


def test_large_arrays_of_environments_that_play_on_are_there_after_a_failure(shades: str) -> None:
    ours = RemoteVectorEnv(shades, COUNT)
    theirs = SyncVectorEnv([lambda: gymnasium.make("openenv-tests/Shades-v0")] * COUNT)
    assert_alike(ours.reset(seed=1), theirs.reset(seed=1))
    before, _ = ours.reset(seed=2)
    with pytest.raises(StepFailed) as failure:
        ours.step(np.array([0, 3, 0, 0]))
    assert failure.value.data["env_ids"] == [1]
    theirs.reset(seed=2)
    expected = theirs.step(np.zeros(COUNT, np.int64))[0]
    mask = np.arange(COUNT) == 1
    after, _ = ours.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(after[~mask], expected[~mask])
    np.testing.assert_array_equal(before, theirs.reset(seed=2)[0])
    ours.close()
    theirs.close()


def test_seeds_are_one_for_each_or_counted_from_the_first(cartpole: str) -> None:
    ours, theirs = RemoteVectorEnv(cartpole, COUNT), near("CartPole-v1", AutoresetMode.NEXT_STEP)
    for seed in (5, np.int64(5), [7, 7, 1, 2], np.array([7, 7, 1, 2])):
        given: Any = seed.tolist() if isinstance(seed, (np.ndarray, np.generic)) else seed
        assert_alike(ours.reset(seed=seed), theirs.reset(seed=given))
    with pytest.raises(InvalidArgument, match="3 seeds for 4 environments"):
        ours.reset(seed=[1, 2, 3])
    ours.close()
    theirs.close()


def test_some_are_reset_and_the_others_keep_their_observations(cartpole: str) -> None:
    ours, theirs = (
        RemoteVectorEnv(cartpole, COUNT, autoreset_mode="SameStep"),
        near("CartPole-v1", AutoresetMode.SAME_STEP),
    )
    assert_alike(ours.reset(seed=1), theirs.reset(seed=1))
    actions = np.zeros(COUNT, np.int64)
    assert_alike(ours.step(actions), theirs.step(actions))
    given = {"reset_mask": np.array([False, True, False, True]), "low": -0.01, "high": 0.01}
    assert_alike(ours.reset(seed=9, options=given), theirs.reset(seed=9, options=dict(given)))
    assert list(given) == ["reset_mask", "low", "high"]
    assert_alike(ours.step(actions), theirs.step(actions))
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "mask", [[True] * COUNT, np.ones(COUNT), np.ones(COUNT + 1, np.bool_), np.zeros(COUNT, np.bool_)]
)
def test_a_mask_that_is_none_is_refused(cartpole: str, mask: Any) -> None:
    envs = RemoteVectorEnv(cartpole, COUNT)
    with pytest.raises(InvalidArgument, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})
    envs.close()


def test_a_mask_before_the_first_reset_leaves_nothing_to_show_of_the_others(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole, COUNT)
    with pytest.raises(ResetRequired, match=r"environments \[1, 2, 3\] have no observation yet"):
        envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_before_the_first_reset_is_refused(cartpole: str, mode: AutoresetMode) -> None:
    envs = RemoteVectorEnv(cartpole, COUNT, autoreset_mode=mode)
    with pytest.raises(ResetRequired):
        envs.step(np.zeros(COUNT, np.int64))
    envs.close()


def test_without_autoreset_nobody_steps_until_all_have_an_episode(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole, 2, autoreset_mode="Disabled")
    envs.reset(seed=1)
    while True:
        ended = np.logical_or(*envs.step(np.array([0, 1]))[2:4])
        if ended.any():
            break
    with pytest.raises(ResetRequired, match="reset_mask") as caught:
        envs.step(np.array([0, 1]))
    assert caught.value.data["env_ids"] == np.flatnonzero(ended).tolist()
    envs.close()


@pytest.mark.parametrize(
    "actions",
    [
        [0, 2, 0, 0],
        [0, -1, 0, 0],
        [0, np.nan, 0, 0],
        [0, 0.5, 0, 0],
        [0, None, 0, 0],
        [0, 2**80, 0, 0],
        [0, [1], 0, 0],
        [0, 1j, 0, 0],
        ["a", "b", "c", "d"],
    ],
)
def test_an_action_outside_of_its_space_moves_no_environment(cartpole: str, actions: Any) -> None:
    ours, theirs = RemoteVectorEnv(cartpole, COUNT), near("CartPole-v1", AutoresetMode.NEXT_STEP)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    with pytest.raises(InvalidAction):
        ours.step(actions)
    ones = np.ones(COUNT, np.int64)
    assert_alike(ours.step(ones), theirs.step(ones))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("actions", [[0], [0] * 5, 0, [[0]] * COUNT])
def test_actions_are_one_for_each(cartpole: str, actions: Any) -> None:
    envs = RemoteVectorEnv(cartpole, COUNT)
    envs.reset()
    with pytest.raises(InvalidArgument, match=r"give \(4,\)"):
        envs.step(actions)
    envs.close()


def test_no_reward_is_made_up(fuse: str) -> None:
    envs = RemoteVectorEnv(fuse, COUNT, **FUSE)
    envs.reset()
    with pytest.raises(UsageError, match=r"missing_reward=0\.0"):
        envs.step([0] * COUNT)
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_is_over_when_it_says_so_and_not_before(mode: AutoresetMode) -> None:
    with served(create_app(Undecided, Action, Verdict, "undecided", max_concurrent_envs=8)) as at:
        envs = RemoteVectorEnv(at, 2, autoreset_mode=mode, **FUSE)
        envs.reset(seed=0)
        for reward, ended in ((1.0, False), (2.0, True)):
            _, rewards, terminated, truncated, infos = envs.step([0, 0])
            assert rewards.tolist() == [reward] * 2
            assert (terminated.tolist(), truncated.tolist()) == ([ended] * 2, [False] * 2)
            assert ("final_obs" in infos) == (ended and mode is AutoresetMode.SAME_STEP)
        envs.close()
        alone = RemoteEnv(at, **FUSE)
        alone.reset(seed=1)
        assert [alone.step(0)[2:4] for _ in range(2)] == [(False, False), (True, False)]
        alone.close()


def test_a_reset_does_not_pass_for_a_step_where_an_episode_was_over_before_it_began() -> None:
    with served(create_app(Undecided, Action, Verdict, "undecided", max_concurrent_envs=8)) as at:
        envs = RemoteVectorEnv(at, 2, autoreset_mode="SameStep", missing_reward=0.0, **FUSE)
        envs.reset(seed=[0, 7])
        with pytest.raises(ResetRequired) as caught:
            envs.step([0, 0])
        assert caught.value.data["env_ids"] == [1]
        envs.reset(seed=[0, 0], options={"reset_mask": np.array([False, True])})
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]
        envs.close()


def test_some_that_fail_are_named_and_brought_back_alone(fuses: RemoteVectorEnv) -> None:
    fuses.reset(seed=[0, 1, 2, 3])
    for _ in range(2):
        fuses.step([0] * COUNT)
    with pytest.raises(StepFailed, match=r"2 of 4 environments failed \(1, 3\); the first: .*burnt out") as caught:
        fuses.step([0] * COUNT)
    assert caught.value.data["env_ids"] == [1, 3]
    with pytest.raises(ResetRequired):
        fuses.step([0] * COUNT)
    mask = np.array([False, True, False, True])
    _, infos = fuses.reset(seed=[0, 2, 0, 4], options={"reset_mask": mask})
    assert infos["_steps"].tolist() == mask.tolist()
    assert fuses.step([0] * COUNT)[4]["steps"].tolist() == [4, 1, 4, 1]
    assert fuses.step([0] * COUNT)[1].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_a_reset_that_fails_is_told_and_can_be_repeated(fuses: RemoteVectorEnv) -> None:
    with pytest.raises(OpenEnvError, match=r"1 of 4 environments failed \(2\).*thirteen"):
        fuses.reset(seed=[0, 2, 13, 4])
    fuses.reset(seed=[0, 2, 4, 6])
    fuses.step([0] * COUNT)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_interrupted_is_no_step_and_no_reset_of_any_environment(mode: AutoresetMode) -> None:
    """Who presses Ctrl-C does not hear what came of it: no later step may pass for that one."""
    during = "step" if mode is AutoresetMode.DISABLED else "reset"
    with served(gymnasium_app("openenv-tests/Patient-v0", during=during)) as at:
        envs = RemoteVectorEnv(at, 2, autoreset_mode=mode)
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(5):
                envs.step([0, 0])
        with pytest.raises(ResetRequired) as caught:
            envs.step([0, 0])
        assert caught.value.data["env_ids"] == [0, 1]
        assert envs.reset()[0].tolist() == [0, 0]
        observations, rewards, *_ = envs.step([0, 0])
        assert (observations.tolist(), rewards.tolist()) == ([1, 1], [1.0, 1.0])
        envs.close()


def test_a_server_that_is_gone_before_the_first_reset_fails_all() -> None:
    with served(gymnasium_app("CartPole-v1")) as at:
        envs = RemoteVectorEnv(at, 2, connect_timeout_s=5)
    with pytest.raises(ConnectionFailed) as caught:
        envs.reset()
    assert caught.value.data["env_ids"] == [0, 1]
    envs.close()


def test_a_member_outside_of_a_space_of_parts_is_named_and_moves_no_environment(fuse: str) -> None:
    space = spaces.Dict(speed=spaces.Discrete(3))
    envs = RemoteVectorEnv(fuse, 2, missing_reward=0.0, **{**FUSE, "action_space": space})
    envs.reset(seed=0)
    with pytest.raises(InvalidAction) as caught:
        envs.step({"speed": np.array([0, 3])})
    assert caught.value.data["env_ids"] == [1]
    assert envs.step({"speed": np.array([0, 2])})[4]["steps"].tolist() == [1, 1]
    envs.close()


def test_one_that_was_closed_begins_anew_and_is_closed_again() -> None:
    app = gymnasium_app("CartPole-v1")
    with served(app) as at:
        envs = RemoteVectorEnv(at, 2)
        envs.reset()
        envs.close()
        with pytest.raises(ResetRequired):
            envs.step([0, 0])
        envs.reset()
        assert app.state.openenv.active_sessions == 2
        envs.close()
        eventually(lambda: app.state.openenv.active_sessions == 0)


def test_what_the_float_of_the_space_cannot_hold_moves_no_environment() -> None:
    with served(gymnasium_app("MountainCarContinuous-v0")) as at:
        space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        envs = RemoteVectorEnv(at, 2, action_space=space)
        first = envs.reset(seed=1)[0]
        with pytest.raises(InvalidAction) as caught:
            envs.step([[0.0], [1e300]])
        assert caught.value.data["env_ids"] == [1]
        others = np.array([True, False])
        assert envs.reset(options={"reset_mask": others})[0][1].tolist() == first[1].tolist()
        envs.close()


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_episodes_and_nothing_is_made_up() -> None:
    with serving("gymnasium:CartPole-v1", "--workers", "2") as server:
        envs = RemoteVectorEnv(server.url, COUNT, connections=2)
        envs.reset(seed=1)
        envs.step(np.zeros(COUNT, np.int64))
        os.kill(workers_of(server.pid)[0], signal.SIGKILL)
        with pytest.raises(SessionLost, match="2 of 4 environments failed") as caught:
            envs.step(np.zeros(COUNT, np.int64))
        lost = np.zeros(COUNT, np.bool_)
        lost[caught.value.data["env_ids"]] = True
        with pytest.raises(ResetRequired):
            envs.step(np.zeros(COUNT, np.int64))
        envs.reset(seed=1, options={"reset_mask": lost})
        ours = envs.step(np.zeros(COUNT, np.int64))
        assert ours[1].tolist() == [1.0] * COUNT
        envs.close()


@pytest.mark.slow
def test_a_server_that_is_gone_is_an_error_of_the_road() -> None:
    with serving("gymnasium:CartPole-v1") as server:
        envs = RemoteVectorEnv(server.url, COUNT, connect_timeout_s=5, message_timeout_s=6)
        envs.reset(seed=1)
        server.end(signal.SIGKILL, group=True)
        with pytest.raises(OpenEnvError, match="4 of 4 environments failed") as caught:
            envs.step(np.zeros(COUNT, np.int64))
        assert caught.value.blame == "infrastructure"
        with pytest.raises(OpenEnvError) as caught:
            envs.reset()
        assert caught.value.blame == "infrastructure"
        envs.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))])
def test_a_copy_has_sessions_of_its_own(cartpole: str, copied: Callable[[Any], Any]) -> None:
    envs = RemoteVectorEnv(cartpole, COUNT, autoreset_mode="SameStep")
    first = envs.reset(seed=1)
    other = copied(envs)
    with pytest.raises(ResetRequired):
        other.step(np.zeros(COUNT, np.int64))
    assert_alike(other.reset(seed=1), first)
    envs.close()
    assert_alike(other.step(np.zeros(COUNT, np.int64))[1], np.ones(COUNT))
    other.close()


def test_what_nobody_holds_gives_its_sessions_back() -> None:
    app = gymnasium_app("CartPole-v1")
    with served(app) as at:
        envs = RemoteVectorEnv(at, COUNT)
        envs.reset()
        assert app.state.openenv.active_sessions == COUNT
        del envs
        gc.collect()
        eventually(lambda: app.state.openenv.active_sessions == 0)


def test_gymnasiums_wrappers_fit(cartpole: str) -> None:
    envs = RecordEpisodeStatistics(RemoteVectorEnv(cartpole, COUNT, autoreset_mode="SameStep"))
    envs.reset(seed=1)
    lengths = []
    for _ in range(60):
        infos = envs.step(np.ones(COUNT, np.int64))[4]
        lengths += infos["episode"]["l"][infos["_episode"]].tolist() if "episode" in infos else []
    assert len(lengths) > COUNT
    assert max(lengths) <= 23
    envs.close()


@pytest.mark.parametrize("arguments", [{"num_envs": 0}, {"connections": 9}, {"autoreset_mode": "Sometimes"}])
def test_numbers_and_modes_that_make_no_sense_are_refused(cartpole: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RemoteVectorEnv(cartpole, **{"num_envs": COUNT, **arguments})


@pytest.mark.parametrize("word", ["NextStep", "next_step", AutoresetMode.NEXT_STEP])
def test_a_mode_has_several_names(cartpole: str, word: Any) -> None:
    envs = RemoteVectorEnv(cartpole, COUNT, autoreset_mode=word)
    assert envs.autoreset_mode is AutoresetMode.NEXT_STEP
    envs.close()


def test_spaces_without_numbers_are_batched_too() -> None:
    for env_id in ("Blackjack-v1",):
        with served(gymnasium_app(env_id)) as at:
            ours, theirs = RemoteVectorEnv(at, COUNT), near(env_id, AutoresetMode.NEXT_STEP)
            assert_alike(ours.reset(seed=2), theirs.reset(seed=2))
            for _ in range(20):
                actions = theirs.action_space.sample()
                assert_alike(ours.step(actions), theirs.step(actions))
            ours.close()
            theirs.close()
