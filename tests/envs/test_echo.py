"""The echo environment: in process, over its client, and over the v1 wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from openenv.envs.echo import EchoAction, EchoEnv, EchoObservation
from openenv.envs.echo.server.app import app
from openenv.envs.echo.server.echo_environment import EchoEnvironment, check
from openenv.errors import InvalidAction
from openenv.types import State


@given(st.text())
def test_a_message_comes_back_and_pays_for_its_length(message):
    seen = EchoEnvironment().step(EchoAction(message=message))
    assert seen.echoed_message == message
    assert seen.message_length == len(message)
    assert seen.reward == pytest.approx(len(message) / 10)
    assert isinstance(seen.reward, float)
    assert not seen.done


def test_reset_starts_a_new_episode():
    environment = EchoEnvironment()
    environment.step(EchoAction(message="a"))
    ready = environment.reset(seed=3, episode_id="mine")
    assert ready.echoed_message
    assert ready.message_length == 0
    assert ready.reward is None
    assert environment.state == State(episode_id="mine", step_count=0)


def test_an_episode_without_a_name_gets_one_of_its_own():
    environment = EchoEnvironment()
    names = {environment.state.episode_id}
    for _ in range(3):
        environment.reset()
        names.add(environment.state.episode_id)
    assert len(names) == 4


def test_the_self_check_finds_a_wrong_reward():
    class Generous(EchoEnvironment):
        def step(self, action, timeout_s=None, **kwargs):
            return super().step(action).model_copy(update={"reward": 7.0})

    assert check(Generous()) == ["five characters are worth 0.5"]


@pytest.mark.parametrize("fields", [{}, {"message": 1}, {"message": "a", "volume": 11}])
def test_an_action_is_one_message(fields):
    with pytest.raises(ValidationError):
        EchoAction(**fields)


def test_it_plays_over_the_v1_wire():
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset", "data": {"episode_id": "wire"}})
        ready = socket.receive_json()
        assert ready["type"] == "observation"
        assert ready["data"]["reward"] is None
        socket.send_json({"type": "step", "data": {"message": "hello"}})
        assert socket.receive_json() == {
            "type": "observation",
            "data": {
                "observation": {"metadata": {}, "echoed_message": "hello", "message_length": 5},
                "reward": 0.5,
                "done": False,
            },
        }
        socket.send_json({"type": "state"})
        assert socket.receive_json() == {"type": "state", "data": {"episode_id": "wire", "step_count": 1}}


def test_a_bad_action_is_refused_and_the_session_goes_on():
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "step", "data": {"text": "hello"}})
        refusal = socket.receive_json()
        assert (refusal["type"], refusal["data"]["code"]) == ("error", "VALIDATION_ERROR")
        socket.send_json({"type": "step", "data": {"message": "hello"}})
        assert socket.receive_json()["type"] == "observation"


def test_it_describes_itself():
    with TestClient(app) as client:
        metadata = client.get("/metadata").json()
        assert metadata["name"] == "echo"
        assert "# Echo environment" in metadata["readme_content"]
        assert client.get("/schema").json()["action"]["required"] == ["message"]


async def test_the_client_speaks_its_types():
    async with EchoEnv(app=app) as env:
        ready = await env.reset(episode_id="typed")
        assert isinstance(ready.observation, EchoObservation)
        assert ready.reward is None
        result = await env.step(EchoAction(message="hi"))
        assert result.observation.echoed_message == "hi"
        assert (result.reward, result.done) == (pytest.approx(0.2), False)
        with pytest.raises(InvalidAction):
            await env.step({"text": "hi"})
        assert await env.state() == State(episode_id="typed", step_count=1)
