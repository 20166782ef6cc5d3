"""Vector environments of Gymnasium as one batch, on real sockets, beside the same vector environment here."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from openenv import SyncEnvClient, create_app
from openenv.adapters.gymnasium import RemoteVectorEnv, gymnasium_app, gymnasium_batch
from openenv.errors import InvalidAction, InvalidArgument, OpenEnvError, ResetRequired, UsageError
from openenv.settings import ServerSettings

from ...recording.lines import lines_in
from ...server.wires import served

pytestmark = pytest.mark.real

COUNT = 6
MODES = list(AutoresetMode)
CART = {"vectorized": True, "num_envs": COUNT}


class Drone(gymnasium.Env[Any, Any]):
    """Flies for some steps, and sees a dict of arrays, numbers, text and a tuple."""

    observation_space = spaces.Dict(
        place=spaces.Box(-9, 9, (2,), np.float32),
        image=spaces.Box(0, 255, (4, 4, 3), np.uint8),
        battery=spaces.Discrete(10, start=1),
        radio=spaces.Text(8),
        wind=spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1, 1, (), np.float64))),
    )
    action_space = spaces.Dict(turn=spaces.Box(-1, 1, (2,), np.float32), lights=spaces.MultiDiscrete([2, 3]))

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.battery = int(self.np_random.integers(2, 7))
        return self.seen(), {"begins": 1, "level": (options or {}).get("level", 0)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = (self.place + action["turn"]).clip(-9, 9)
        self.battery -= 1
        info = {"lit": action["lights"].sum()} if action["lights"].any() else {}
        return self.seen(), float(self.place.sum()), self.battery == 1, bool((np.abs(self.place) > 2).any()), info

    def seen(self) -> dict[str, Any]:
        wind = (np.array([1, self.battery % 2], np.int8), np.array(self.place[0] / 9, np.float64))
        image = np.full((4, 4, 3), self.battery, np.uint8)
        radio = "low" if self.battery < 3 else ""
        return {"place": self.place, "image": image, "battery": self.battery, "radio": radio, "wind": wind}


def drones(num_envs: int, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv([Drone] * num_envs, autoreset_mode=AutoresetMode(mode))


gymnasium.register("openenv-tests/Drone-v0", Drone, vector_entry_point=drones)


class OnHost:
    """An array of another library in the memory of the host, which shares it by DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class OnDevice(OnHost):
    """An array on a device, which numpy can only copy."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it is on a device")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.array.astype(dtype or self.array.dtype)


class Elsewhere(VectorEnv[Any, Any, Any]):
    """Keeps its episodes in arrays that are not numpy's."""

    def __init__(self, num_envs: int, on_host: bool = True, rows: int | None = None, mode: str = "SameStep"):
        self.num_envs, self.on_host, self.rows = num_envs, on_host, rows or num_envs
        self.metadata = {"autoreset_mode": "never" if mode == "never" else AutoresetMode(mode)}
        self.single_action_space = spaces.Box(-1, 1, (), np.float32)
        self.single_observation_space = spaces.Box(-99, 99, (3,), np.float32)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)

    def array(self, value: Any, shape: tuple[int, ...] = (), dtype: Any = np.float32) -> OnHost:
        array = np.full((self.rows, *shape), value, dtype)
        return OnHost(array) if self.on_host else OnDevice(array)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.total = float(seed or 0)
        return self.array(self.total, (3,)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.total += float(actions.sum())
        ends = self.array(self.total > 5, (), np.bool_)
        return self.array(self.total, (3,)), self.array(1), ends, ends, {"speed": self.array(2), "lap": 3, "by": "me"}


gymnasium.register("openenv-tests/Elsewhere-v0", vector_entry_point=Elsewhere)


@contextmanager
def both(env_id: str, **kwargs: Any) -> Iterator[tuple[RemoteVectorEnv, Any]]:
    """A served vector environment, in its own mode, and the same one here."""
    with served(gymnasium_app(env_id, **CART, **kwargs)) as at:
        ours = RemoteVectorEnv(at, autoreset_mode=kwargs.get("mode"))
        theirs = gymnasium.make_vec(env_id, COUNT, vectorization_mode="vector_entry_point", **kwargs)
        yield ours, theirs
        ours.close()
        theirs.close()


def assert_alike(ours: Any, theirs: Any) -> None:
    infos = [outcome[-1] for outcome in (ours, theirs)]
    if "final_obs" in infos[1]:
        np.testing.assert_equal(*[info.pop("final_obs").tolist() for info in infos])
    assert data_equivalence(ours, theirs), f"{ours}\n{theirs}"


def test_cartpole_is_the_same_as_here() -> None:
    with both("CartPole-v1", max_episode_steps=40) as (ours, theirs):
        assert ours.num_envs == COUNT
        assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert getattr(ours, name) == getattr(theirs, name)
        theirs.action_space.seed(1)
        assert_alike(ours.reset(seed=3), theirs.reset(seed=3))
        ends = 0
        for _ in range(100):
            actions = theirs.action_space.sample()
            outcome, expected = ours.step(actions), theirs.step(actions)
            expected = (expected[0], expected[1].astype(np.float64), *expected[2:])
            assert_alike(outcome, expected)
            ends += int((outcome[2] | outcome[3]).sum())
        assert ends > COUNT
        outcome[0][:] = 0  # its arrays are the trainer's own
        assert ours.step(actions)[0].any()


@pytest.mark.parametrize("mode", MODES)
def test_dicts_texts_and_tuples_in_each_mode_of_the_environment(mode: AutoresetMode) -> None:
    with both("openenv-tests/Drone-v0", mode=mode.value) as (ours, theirs):
        play_drones(ours, theirs, mode)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_records_have_an_action_and_an_observation_of_each_episode_as_the_schema_says(
    mode: str, tmp_path: Path
) -> None:
    batch = gymnasium_batch("openenv-tests/Drone-v0", num_envs=COUNT, mode=mode)
    app = create_app(batch, settings=ServerSettings(record=str(tmp_path)))
    with served(app) as at:
        ours = RemoteVectorEnv(at, autoreset_mode=mode)
        ours.action_space.seed(1)
        ours.reset(seed=5)
        actions = [ours.action_space.sample() for _ in range(8)]
        for action in actions:
            ours.step(action)
        ours.close()
    app.state.openenv.recorder.close()
    lines = lines_in(tmp_path)
    assert [line["error"] for line in lines if line["error"]] == []
    for line in lines:
        assert isinstance(line["observation"]["observation"]["wind"], list)
        assert len(line["observation"]["observation"]["wind"]) == 2
        if line["step"]:
            assert set(line["action"]["action"]) == {"turn", "lights"}


def test_an_environment_without_autoreset_is_offered_with_the_next_episode_in_the_same_step() -> None:
    with served(gymnasium_app("openenv-tests/Drone-v0", **CART, mode="Disabled")) as at:
        ours = RemoteVectorEnv(at, autoreset_mode="SameStep")
        theirs = drones(COUNT, "SameStep")
        play_drones(ours, theirs, AutoresetMode.SAME_STEP)
        ours.close()
        theirs.close()
        ours = RemoteVectorEnv(at, autoreset_mode="NextStep")  # needs a step without the episodes that have ended
        with pytest.raises(UsageError, match="disabled or same_step"):
            ours.reset()
        ours.close()
        ours = RemoteVectorEnv(at)
        assert ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED


def play_drones(ours: RemoteVectorEnv, theirs: Any, mode: AutoresetMode) -> None:
    assert ours.metadata["autoreset_mode"] is mode
    theirs.action_space.seed(1)
    assert_alike(ours.reset(seed=5, options={"level": 2}), theirs.reset(seed=5, options={"level": 2}))
    for _ in range(12):
        actions = theirs.action_space.sample()
        outcome = ours.step(actions)
        assert_alike(outcome, theirs.step(actions))
        ended = outcome[2] | outcome[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            with pytest.raises(ResetRequired, match="reset_mask"):
                ours.step(actions)
            given = {"reset_mask": ended}
            assert_alike(ours.reset(options=dict(given)), theirs.reset(options=dict(given)))


@pytest.mark.parametrize("on_host", [True, False])
def test_arrays_of_other_libraries_arrive_as_arrays_of_numpy(on_host: bool) -> None:
    with both("openenv-tests/Elsewhere-v0", on_host=on_host) as (ours, _):
        observation, infos = ours.reset(seed=2)
        assert (observation == np.full((COUNT, 3), 2, np.float32)).all()
        assert infos == {}
        observation, rewards, terminated, _, infos = ours.step(np.full(COUNT, 0.5))
        assert observation.tolist() == [[5] * 3] * COUNT
        assert rewards.tolist() == [1.0] * COUNT
        assert terminated.dtype == np.bool_
        assert infos["speed"].tolist() == [2] * COUNT
        assert infos["lap"].tolist() == [3] * COUNT
        assert infos["by"].tolist() == ["me"] * COUNT
        assert infos["_speed"].all()
        assert ours.step(np.full(COUNT, 0.5))[2].all()


def test_a_batch_of_another_number_of_rows_is_a_failure_of_the_environment() -> None:
    with both("openenv-tests/Elsewhere-v0", rows=COUNT + 1) as (ours, _):
        with pytest.raises(OpenEnvError, match=r"shape \(7, 3\)") as caught:
            ours.reset()
        assert caught.value.blame == "environment"
        with pytest.raises(ResetRequired):
            ours.step(np.zeros(COUNT))


def test_what_cannot_be_a_batch_is_refused_when_it_is_served() -> None:
    with pytest.raises(UsageError, match="vectorized=true needs a vector_entry_point"):
        gymnasium_app("FrozenLake-v1", vectorized=True, num_envs=2)
    wrong: list[Any] = [0, -1, True, "8", 2.0, None]
    for num_envs in wrong:
        with pytest.raises(UsageError, match="give the number of episodes"):
            gymnasium_batch("CartPole-v1", num_envs)
    with pytest.raises(UsageError, match="vectorized='yes'"):
        gymnasium_app("CartPole-v1", vectorized="yes", num_envs=2)
    with pytest.raises(UsageError, match="unexpected keyword argument"):
        gymnasium_app("CartPole-v1", vectorized=True, num_envs=2, colour="red")
    with (
        pytest.warns(UserWarning, match="autoreset_mode"),
        pytest.raises(UsageError, match="give its mode, autoreset=next_step or same_step or disabled"),
    ):
        gymnasium_app("openenv-tests/Elsewhere-v0", **CART, mode="never")
    with pytest.warns(UserWarning, match="autoreset_mode"):
        made = gymnasium_batch("openenv-tests/Elsewhere-v0", COUNT, "same_step", mode="never")
    assert made.autoreset == "same_step"


@pytest.mark.parametrize("mode", MODES)
def test_a_single_session_is_refused_with_the_way_to_play(mode: AutoresetMode) -> None:
    with served(gymnasium_app("openenv-tests/Drone-v0", **CART, mode=mode.value)) as at, SyncEnvClient(at) as env:
        with pytest.raises(UsageError, match="BatchedEnvClient"):
            env.reset()


@pytest.fixture(scope="module")
def cartpole() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1", **CART)) as at:
        yield at


def test_seeds_count_from_the_first(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole)
    first, _ = envs.reset(seed=7)
    same, _ = envs.reset(seed=list(range(7, 7 + COUNT)))
    np.testing.assert_equal(first, same)
    assert not np.array_equal(first, envs.reset()[0])
    with pytest.raises(InvalidAction, match="one seed for all episodes"):
        envs.reset(seed=[1] * COUNT)
    with pytest.raises(InvalidArgument, match=f"3 seeds for {COUNT} environments"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(InvalidAction, match="reset without a mask"):
        envs.reset(seed=1, options={"reset_mask": np.arange(COUNT) == 2})
    envs.close()


def test_a_mask_is_one_of_bools(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole)
    for mask in ([True] * COUNT, np.ones(COUNT), np.ones(2, np.bool_), np.zeros(COUNT, np.bool_)):
        with pytest.raises(InvalidArgument, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
    envs.close()


def test_a_mode_that_the_environment_does_not_have_is_refused(cartpole: str) -> None:
    with pytest.raises(UsageError, match="next_step"):
        RemoteVectorEnv(cartpole, autoreset_mode="SameStep").reset()


def test_another_number_of_environments_is_refused(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole, num_envs=COUNT)
    assert envs.reset()[0].shape == (COUNT, 4)
    envs.close()
    with pytest.raises(UsageError, match="BatchedEnvClient"):
        RemoteVectorEnv(cartpole, num_envs=2).reset()


def test_actions_are_checked_before_a_step(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole)
    with pytest.raises(ResetRequired):
        envs.step(np.zeros(COUNT, np.int64))
    envs.reset(seed=1)
    with pytest.raises(InvalidAction) as caught:
        envs.step([0, 0, 2, 0, 0, 0])
    assert caught.value.data["env_ids"] == [2]
    for wrong in ([0], np.zeros((COUNT, 1), np.int64)):
        with pytest.raises(InvalidArgument, match="actions of shape"):
            envs.step(wrong)
    with pytest.raises(InvalidAction):
        envs.step([0.5] * COUNT)
    assert envs.step(np.zeros(COUNT, np.int32))[1].tolist() == [1.0] * COUNT
    envs.close()


def test_the_server_checks_actions_too(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole)
    envs.reset(seed=1)
    with pytest.raises(InvalidAction, match="action"):
        envs.client.step(np.full(COUNT, 2))
    with pytest.raises(InvalidAction, match="action"):
        envs.client.step(np.zeros(COUNT + 1, np.int64))
    assert envs.step(np.zeros(COUNT, np.int64))[1].tolist() == [1.0] * COUNT
    envs.close()


def test_copies_own_batches_of_their_own(cartpole: str) -> None:
    envs = RemoteVectorEnv(cartpole)
    first, _ = envs.reset(seed=1)
    for made in (copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))):
        with pytest.raises(ResetRequired):
            made.step(np.zeros(COUNT, np.int64))
        np.testing.assert_equal(made.reset(seed=1)[0], first)
        made.close()
    envs.step(np.zeros(COUNT, np.int64))
    envs.close()
    np.testing.assert_equal(envs.reset(seed=1)[0], first)
    envs.close()


def test_a_failed_step_needs_a_reset_of_all() -> None:
    with both("openenv-tests/Elsewhere-v0") as (ours, _):
        with pytest.raises(ResetRequired):
            ours.step(np.zeros(COUNT))
        ours.reset(seed=1)
        ours.step(np.zeros(COUNT))
        assert ours.reset(seed=4)[0][0, 0] == 4
