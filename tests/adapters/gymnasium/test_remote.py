"""Served environments as `gymnasium.Env`, on real sockets."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import signal
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence
from pydantic import Field

from openenv.adapters.gymnasium import RemoteEnv, gymnasium_app
from openenv.environment import Environment
from openenv.errors import (
    ConnectionFailed,
    InvalidAction,
    InvalidArgument,
    OpenEnvError,
    ProtocolViolation,
    ResetRequired,
    UnmappableSpace,
    UsageError,
)
from openenv.server import create_app
from openenv.types import Action, Observation, State

from ...cli.process import serving
from ...server.wires import served

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:.*WARN:UserWarning")]


class Move(Action):
    direction: Literal["left", "right"]


class Seen(Observation):
    place: Annotated[int, Field(ge=0, le=9)]
    note: dict[str, Any] | None = None


class Corridor(Environment[Move, Seen, State]):
    """No Gymnasium environment: ten places in a row. There is a reward at the right end and none before."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def reset(self, seed: int | None = None, start: int = 5, **kwargs: Any) -> Seen:
        self.place = start
        return Seen(place=start, metadata={"start": start})

    def step(self, action: Move, **kwargs: Any) -> Seen:
        self.place += 1 if action.direction == "right" else -1
        done = self.place in {0, 9}
        return Seen(place=self.place, done=done, reward=float(self.place) if done else None)

    @property
    def state(self) -> State:
        return State()


@pytest.fixture(scope="module")
def cartpole() -> Iterator[str]:
    with served(gymnasium_app("CartPole-v1")) as at:
        yield at


@pytest.fixture(scope="module")
def corridor() -> Iterator[str]:
    with served(create_app(Corridor, Move, Seen, "corridor", max_concurrent_envs=16)) as at:
        yield at


def place_of(fields: dict[str, Any]) -> int:
    return int(fields["place"])


CORRIDOR: dict[str, Any] = {
    "observation_space": spaces.Discrete(10),
    "decode_observation": place_of,
    "missing_reward": 0.0,
}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"])
def test_gymnasium_finds_no_fault_in_a_served_environment(env_id: str) -> None:
    with served(gymnasium_app(env_id)) as at:
        env = RemoteEnv(at)
        check_env(env)
        env.close()


@pytest.mark.filterwarnings("ignore:the seed")
def test_gymnasium_finds_no_fault_in_another_environment(corridor: str) -> None:
    env = RemoteEnv(corridor, **CORRIDOR)
    check_env(env)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1"])
def test_an_episode_is_the_same_as_beside_us(env_id: str) -> None:
    with served(gymnasium_app(env_id)) as at:
        far, near = RemoteEnv(at), gymnasium.make(env_id)
        assert (far.observation_space, far.action_space) == (near.observation_space, near.action_space)
        near.action_space.seed(1)
        assert data_equivalence(far.reset(seed=7)[1], near.reset(seed=7)[1])
        for _ in range(100):
            action = near.action_space.sample()
            ours, theirs = far.step(action), near.step(action)
            np.testing.assert_array_equal(ours[0], theirs[0])
            assert ours[1:] == theirs[1:]
            if ours[2] or ours[3]:
                np.testing.assert_array_equal(far.reset()[0], near.reset()[0])
        far.close()
        near.close()


def test_an_environment_that_knows_nothing_of_gymnasium(corridor: str) -> None:
    env = RemoteEnv(corridor, **CORRIDOR)
    assert env.action_space == spaces.Discrete(2)
    assert env.reset(options={"start": 8}) == (8, {"start": 8})
    assert env.step(0) == (7, 0.0, False, False, {})
    assert env.step(1)[:2] == (8, 0.0)
    assert env.step(1)[:4] == (9, 9.0, True, False)
    env.close()


def test_no_reward_is_made_up(corridor: str) -> None:
    env = RemoteEnv(corridor, **{**CORRIDOR, "missing_reward": None})
    env.reset()
    with pytest.raises(UsageError, match=r"missing_reward=0\.0"):
        env.step(0)
    env.close()


def test_a_schema_without_a_space_says_how_to_go_on(corridor: str) -> None:
    with pytest.raises(UnmappableSpace, match=r"observation\.note: .* give observation_space=.*decode_observation="):
        RemoteEnv(corridor)


def test_a_function_without_its_space_is_refused(corridor: str) -> None:
    with pytest.raises(InvalidArgument, match="observation_space="):
        RemoteEnv(corridor, decode_observation=place_of)


def test_an_observation_that_does_not_fit_is_a_typed_error(corridor: str) -> None:
    env = RemoteEnv(corridor, **{**CORRIDOR, "decode_observation": lambda fields: fields["palace"]})
    with pytest.raises(ProtocolViolation, match=r"does not fit Discrete\(10\) \(KeyError: 'palace'\)"):
        env.reset()
    env.close()


@pytest.mark.parametrize("action", [2, -1, None, "left", [0, 1], float("nan")])
def test_an_action_outside_of_its_space_changes_nothing(cartpole: str, action: Any) -> None:
    env, other = RemoteEnv(cartpole), RemoteEnv(cartpole)
    env.reset(seed=1)
    other.reset(seed=1)
    with pytest.raises(InvalidAction):
        env.step(action)
    np.testing.assert_array_equal(env.step(1)[0], other.step(1)[0])
    env.close()
    other.close()


@pytest.mark.parametrize("action", [-1, 2, 0.5, np.nan, None, "left"])
def test_the_place_of_a_word_is_one_of_those_that_there_are(corridor: str, action: Any) -> None:
    env = RemoteEnv(
        corridor,
        observation_space=spaces.Discrete(10),
        decode_observation=lambda fields: fields["place"],
        missing_reward=0.0,
    )
    env.reset()
    with pytest.raises(InvalidAction):
        env.step(action)
    assert env.step(1)[0] == 6
    env.close()


def test_a_step_without_an_episode_is_refused(cartpole: str) -> None:
    env = RemoteEnv(cartpole)
    with pytest.raises(ResetRequired):
        env.step(0)
    env.reset(seed=1)
    while not env.step(0)[2]:
        pass
    with pytest.raises(ResetRequired):
        env.step(0)
    env.close()


def test_options_that_are_none_are_refused(cartpole: str) -> None:
    env = RemoteEnv(cartpole)
    with pytest.raises(InvalidArgument, match="options"):
        env.reset(options=3)
    env.close()


def test_gymnasium_gets_its_options_as_they_are(cartpole: str) -> None:
    env = RemoteEnv(cartpole)
    observation, _ = env.reset(seed=1, options={"low": 0.03, "high": 0.04})
    assert ((observation >= 0.03) & (observation <= 0.04)).all()
    env.close()


def test_it_can_be_closed_twice_and_used_again(cartpole: str) -> None:
    env = RemoteEnv(cartpole)
    first = env.reset(seed=1)[0]
    env.close()
    env.close()
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
    env.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_has_a_session_of_its_own(cartpole: str, copied: Any) -> None:
    env = RemoteEnv(cartpole)
    env.action_space.seed(5)
    env.reset(seed=1)
    other = copied(env)
    assert [other.action_space.sample() for _ in range(9)] == [env.action_space.sample() for _ in range(9)]
    other.reset(seed=1)
    np.testing.assert_array_equal(other.step(0)[0], env.step(0)[0])
    env.close()
    other.close()


def _first(env: RemoteEnv) -> Any:
    first = env.reset(seed=1)[0]
    env.close()
    return first


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_another_process_may_have_it(cartpole: str, method: str) -> None:
    env = RemoteEnv(cartpole)
    first = env.reset(seed=1)[0]
    with multiprocessing.get_context(method).Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_first, (env,)), first)
    env.close()


def test_an_app_in_this_process_takes_no_server_and_no_pickle() -> None:
    env = RemoteEnv(app=gymnasium_app("CartPole-v1"))
    assert env.reset(seed=1)[0].shape == (4,)
    with pytest.raises(UsageError, match="base_url"):
        pickle.dumps(env)
    env.close()


def test_where_no_server_is_there_is_no_environment() -> None:
    with pytest.raises(ConnectionFailed, match="no answer from"):
        RemoteEnv("127.0.0.1:9", connect_timeout_s=1)


def test_a_server_that_wants_a_key_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", "secret-of-this-test-1234")
    app = gymnasium_app("CartPole-v1")
    monkeypatch.delenv("OPENENV_API_KEYS")
    with served(app) as at:
        with pytest.raises(OpenEnvError, match="OPENENV_API_KEY"):
            RemoteEnv(at)
        env = RemoteEnv(at, api_key="secret-of-this-test-1234")
        assert env.reset(seed=1)[0].shape == (4,)
        env.close()


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_gives_no_reward_but_an_error() -> None:
    with serving("gymnasium:CartPole-v1") as server:
        env = RemoteEnv(server.url, connect_timeout_s=5, message_timeout_s=3)
        env.reset(seed=1)
        env.step(0)
        server.end(signal.SIGKILL, group=True)
        with pytest.raises(OpenEnvError) as caught:  # how long it is sought is up to the timeouts
            env.step(0)
        assert caught.value.blame == "infrastructure"
        with pytest.raises(OpenEnvError) as caught:
            env.reset()
        assert caught.value.blame == "infrastructure"
        env.close()
