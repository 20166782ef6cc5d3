"""`async_reset`, `send` and `recv` of `RemoteVectorEnv`, on real sockets: the environments that finish first."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from openenv import _backoff
from openenv.adapters.gymnasium import RemoteVectorEnv, gymnasium_app
from openenv.client import session
from openenv.errors import InvalidAction, InvalidArgument, ResetRequired, StepFailed, UsageError

from ...chaos.proxy import Proxy
from ...server.wires import served

pytestmark = pytest.mark.real

COUNT, BATCH = 4, 2
FAIL, SLOW = 2, 3


class Tempo(gymnasium.Env[Any, Any]):
    """An episode has 4 steps. Action 2 fails, and action 3 waits for `free`."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(4)
    free = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.first = float(self.np_random.integers(100))
        self.steps = 0
        return np.array([self.first, 0], np.float32), {"begins": self.first}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == FAIL:
            raise ValueError("it failed")
        if action == SLOW:
            assert self.free.wait(30)
        self.steps += 1
        info = {"even": self.steps} if self.steps % 2 == 0 else {}
        return np.array([self.first, self.steps], np.float32), float(self.steps), self.steps == 4, False, info


gymnasium.register("openenv-tests/Tempo-v0", Tempo)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(gymnasium_app("openenv-tests/Tempo-v0")) as at:
        yield at


@pytest.fixture
def remote(address: str) -> Iterator[Callable[..., RemoteVectorEnv]]:
    Tempo.free.clear()
    made: list[RemoteVectorEnv] = []

    def make(mode: str = "NextStep", **options: Any) -> RemoteVectorEnv:
        made.append(RemoteVectorEnv(address, COUNT, autoreset_mode=mode, batch_size=BATCH, **options))
        return made[-1]

    yield make
    Tempo.free.set()
    for envs in made:
        envs.close()


def actions(*given: int) -> Any:
    return np.array(given, np.int64)


Trajectories = dict[int, list[Any]]


def played(envs: RemoteVectorEnv, between: Callable[[int], object] = lambda number: None) -> Trajectories:
    """The first 12 results of each environment, by `recv`.

    Args:
        envs: The environments.
        between: Called before each batch, with its number.
    """
    found: Trajectories = {env_id: [] for env_id in range(COUNT)}
    envs.async_reset(seed=3)
    numbers = itertools.count()
    while min(map(len, found.values())) < 12:
        between(next(numbers))
        observations, rewards, terminated, truncated, infos = envs.recv()
        env_ids = infos["env_id"]
        assert (observations.shape, env_ids.shape, env_ids.dtype) == ((BATCH, 2), (BATCH,), np.int32)
        assert not truncated.any()
        for row, env_id in enumerate(env_ids.tolist()):
            found[env_id].append((observations[row].tolist(), rewards[row], terminated[row]))
        envs.send(np.array([0, 1, 0, 1])[env_ids], env_ids)
    return {env_id: trajectory[:12] for env_id, trajectory in found.items()}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_each_environment_plays_as_it_does_in_step(remote: Any, mode: str) -> None:
    """The trajectory of an environment does not depend on the batches in which it comes."""
    together = remote(mode)
    results = [(together.reset(seed=3)[0], np.zeros(COUNT), np.zeros(COUNT, np.bool_))]
    results += [together.step(actions(0, 1, 0, 1))[:3] for _ in range(11)]
    assert played(remote(mode)) == {
        env_id: [(seen[env_id].tolist(), reward[env_id], end[env_id]) for seen, reward, end in results]
        for env_id in range(COUNT)
    }


def test_a_cut_connection_leaves_no_trace(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_backoff, session):  # connects again at once
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.002)
    with Proxy(int(address.rpartition(":")[2]), 3) as proxy:
        urls = address, f"127.0.0.1:{proxy.port}"
        uncut, cut = [RemoteVectorEnv(url, COUNT, batch_size=BATCH) for url in urls]
        assert played(cut, lambda number: number % 3 == 0 and proxy.doom(600)) == played(uncut)
        assert proxy.accepted > 3
        for envs in (uncut, cut):
            envs.close()


def test_a_slow_environment_holds_no_other(remote: Any) -> None:
    envs = remote()
    envs.reset(seed=3)
    envs.send(actions(0, SLOW, 0, 0))
    steps: dict[int, int] = defaultdict(int)
    for _ in range(6):
        infos = envs.recv()[4]
        assert 1 not in infos["env_id"]
        for env_id in infos["env_id"]:
            steps[int(env_id)] += 1
        envs.send(actions(0, 0), infos["env_id"])
    assert sum(steps.values()) == 12
    Tempo.free.set()
    received: list[int] = []
    while 1 not in received:
        received += envs.recv()[4]["env_id"].tolist()


def test_arrays_that_were_received_do_not_change(remote: Any) -> None:
    envs = remote()
    envs.async_reset(seed=3)
    first = envs.recv()[0]
    copy, second = first.copy(), envs.recv()[0]
    envs.send(actions(1, 1, 1, 1))
    envs.recv()
    np.testing.assert_array_equal(first, copy)
    assert not np.shares_memory(first, second)


def test_infos_are_those_of_the_batch(remote: Any) -> None:
    envs = remote()
    envs.async_reset(seed=3)
    seen = []
    for _ in range(2):
        observations, rewards, _, _, infos = envs.recv()
        assert rewards.tolist() == [0.0, 0.0]
        assert infos["begins"].tolist() == observations[:, 0].tolist()
        assert infos["_begins"].tolist() == [True, True]
        seen += infos["env_id"].tolist()
    assert sorted(seen) == list(range(COUNT))
    envs.send(actions(0, 1), [2, 0])
    assert envs.recv()[4]["env_id"].tolist() == [0, 2]
    envs.send(actions(0, 1), [2, 3])
    infos = envs.recv()[4]
    assert (infos["env_id"].tolist(), infos["even"].tolist()) == ([2, 3], [2, 0])
    assert infos["_even"].tolist() == [True, False]


def test_the_last_observations_of_same_step_are_those_of_the_batch(remote: Any) -> None:
    envs = remote("SameStep")
    envs.reset(seed=3)
    for _ in range(3):
        envs.send(actions(0, 0), [1, 3])
        envs.recv()
    envs.send(actions(0, 0), [0, 3])
    _, rewards, terminated, _, infos = envs.recv()
    assert (rewards.tolist(), terminated.tolist()) == ([1.0, 4.0], [False, True])
    assert infos["_final_obs"].tolist() == [False, True]
    assert infos["final_obs"][1][1] == 4.0


def test_a_failure_loses_no_other_result(remote: Any) -> None:
    envs = remote()
    envs.reset(seed=3)
    envs.send(actions(FAIL, 0), [1, 2])
    with pytest.raises(StepFailed, match="1 of 4 environments failed") as failed:
        envs.recv()
    assert failed.value.data["env_ids"] == [1]
    with pytest.raises(UsageError, match=r"2 results \(batch_size\), and 1 are on"):
        envs.recv()
    envs.async_reset(seed=8, options={"reset_mask": np.arange(COUNT) == 1})
    observations, rewards, _, _, infos = envs.recv()
    assert infos["env_id"].tolist() == [1, 2]
    assert (observations[:, 1].tolist(), rewards.tolist()) == ([0.0, 1.0], [0.0, 1.0])


def test_an_environment_that_failed_is_sent_no_step(remote: Any) -> None:
    envs = remote()
    envs.reset(seed=3)
    envs.send(actions(FAIL, FAIL), [0, 1])
    with pytest.raises(StepFailed) as failed:
        envs.recv()
    assert failed.value.data["env_ids"] == [0, 1]
    with pytest.raises(ResetRequired, match="async_reset") as caught:
        envs.send(actions(0, 0, 0))
    assert caught.value.data["env_ids"] == [0, 1]
    envs.send(actions(0, 0), [2, 3])
    assert envs.recv()[4]["env_id"].tolist() == [2, 3]


def test_calls_that_do_not_fit_are_refused_and_send_nothing(remote: Any) -> None:
    envs = remote()
    with pytest.raises(ResetRequired):
        envs.send(actions(0, 0, 0, 0))
    envs.reset(seed=3)
    with pytest.raises(UsageError, match="send"):
        envs.recv()
    with pytest.raises(InvalidArgument, match=r"\(1,\) for 2"):
        envs.send(actions(0), [0, 1])
    with pytest.raises(InvalidAction):
        envs.send(actions(0, 7), [0, 1])
    for env_ids in ([0, 0], [0, 4], [-1, 0], [0.5, 1]):
        with pytest.raises(InvalidArgument, match="env_id"):
            envs.send(actions(0, 0), env_ids)
    envs.send(actions(0, 0), [0, 1])
    for call in (
        lambda: envs.send(actions(0, 0), [1, 2]),
        lambda: envs.step(actions(0, 0, 0, 0)),
        envs.reset,
        envs.async_reset,
    ):
        with pytest.raises(UsageError, match=r"\[.*1\].*recv"):
            call()
    observations = envs.recv()[0]
    assert observations[:, 1].tolist() == [1.0, 1.0]
    assert envs.step(actions(0, 0, 0, 0))[0][:, 1].tolist() == [2.0, 2.0, 1.0, 1.0]


def test_results_wait_until_a_batch_is_full(remote: Any) -> None:
    """Environments whose results have come but were not returned yet are still busy."""
    envs = remote()
    envs.async_reset(seed=3)
    first = envs.recv()[4]["env_id"]
    others = np.setdiff1d(np.arange(COUNT), first)
    with pytest.raises(UsageError, match="recv"):
        envs.send(actions(0, 0), others)
    assert envs.recv()[4]["env_id"].tolist() == others.tolist()


def test_what_was_sent_before_a_close_is_dropped(remote: Any) -> None:
    envs = remote()
    envs.reset(seed=3)
    envs.send(actions(0, 0, SLOW, SLOW))
    envs.close()
    Tempo.free.set()
    assert envs.reset(seed=3)[0][:, 1].tolist() == [0.0] * COUNT
    with pytest.raises(UsageError, match="send"):
        envs.recv()


@pytest.mark.parametrize("size", [0, COUNT + 1, 1.5])
def test_a_batch_has_at_most_all_environments(address: str, size: Any) -> None:
    with pytest.raises(UsageError, match=r"batch_size=.*from 1 to 4"):
        RemoteVectorEnv(address, COUNT, batch_size=size)


def test_without_a_batch_size_a_batch_has_all(address: str) -> None:
    envs = RemoteVectorEnv(address, COUNT)
    assert envs.batch_size == COUNT
    envs.async_reset(seed=5)
    observations, *_, infos = envs.recv()
    assert infos["env_id"].tolist() == list(range(COUNT))
    np.testing.assert_array_equal(observations, envs.reset(seed=5)[0])
    envs.close()
