"""Drives a server of the harbor: an asynchronous environment with rubric, transform and metadata of its own."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime

from checks import ask, check, check_ours, fails, http, main, websocket
from harbor_env import HarborAction, HarborEnv, HarborObservation, HarborState
from harbor_env.models import Berth

from openenv import GenericAction, GenericEnvClient


@check
async def an_episode_runs_to_its_end(url: str) -> None:
    async with HarborEnv(base_url=url) as env:
        result = await env.reset(tide=2)
        assert isinstance(result.observation, HarborObservation)
        assert result.observation.berths == [Berth.NORTH, Berth.SOUTH]
        assert result.observation.queue == [0, 1, 2]
        assert isinstance(result.observation.arrived_at, datetime)
        assert result.observation.arrived_at.tzinfo is not None
        assert (result.reward, result.done) == (None, False)
        result = await env.step(HarborAction(berth=Berth.NORTH))
        assert result.observation.berths == [Berth.SOUTH]
        await env.step(HarborAction(berth=Berth.SOUTH, length_m=10.5))
        result = await env.step(HarborAction(berth=Berth.SOUTH))
        assert result.done is True


@check
async def the_rubric_scores_and_the_transform_copies_the_score(url: str) -> None:
    async with HarborEnv(base_url=url) as env:
        await env.reset()
        for action, expected in [
            (HarborAction(berth=Berth.NORTH, length_m=50), 1.0),
            (HarborAction(berth=Berth.NORTH, length_m=150), 0.25),
            (HarborAction(berth=Berth.SOUTH, length_m=150.5, wait_s=0.01), 0.75),
        ]:
            result = await env.step(action)
            assert result.reward == expected
            assert result.observation.reward == expected
            assert result.observation.score == expected


@check
async def metadata_of_the_observation_reaches_the_result(url: str) -> None:
    async with HarborEnv(base_url=url) as env:
        await env.reset(tide=1.5)
        result = await env.step(HarborAction(berth=Berth.NORTH))
        assert result.observation.metadata["tide"] == 1.5
        assert result.metadata["tide"] == 1.5


@check
async def the_state_keeps_its_further_fields(url: str) -> None:
    async with HarborEnv(base_url=url) as env:
        await env.reset(tide=3, episode_id="mine")
        await env.step(HarborAction(berth=Berth.SOUTH))
        state = await env.state()
        assert isinstance(state, HarborState)
        assert (state.episode_id, state.step_count, state.tide, state.berthed) == ("mine", 1, 3.0, ["south"])


@check
async def what_the_environment_raises_is_told(url: str) -> None:
    async with HarborEnv(base_url=url) as env:
        with fails("no ship has been announced"):
            await env.step(HarborAction(berth=Berth.NORTH))
        await env.reset()
        assert (await env.step(HarborAction(berth=Berth.NORTH))).reward == 1.0


@check
async def sessions_that_wait_do_not_wait_for_one_another(url: str) -> None:
    async def play() -> None:
        async with HarborEnv(base_url=url) as env:
            await env.reset()
            result = await env.step(HarborAction(berth=Berth.NORTH, wait_s=1.0))
            assert result.reward == 0.75

    began = time.monotonic()
    await asyncio.gather(*(play() for _ in range(12)))
    assert time.monotonic() - began < 8


@check
def an_async_environment_is_driven_by_a_synchronous_client(url: str) -> None:
    with HarborEnv(base_url=url).sync() as env:
        env.reset(tide=1)
        assert env.step(HarborAction(berth=Berth.NORTH)).reward == 1.0
        assert env.state().step_count == 1
    with HarborEnv(base_url=url) as env:
        env.reset()
        assert env.step(HarborAction(berth=Berth.SOUTH)).reward == 1.0


@check
def a_generic_client_needs_no_package(url: str) -> None:
    """As verifiers does it: the schema tells what an action is."""
    schema = http("GET", url + "/schema").json
    assert schema["action"]["required"] == ["berth"]
    assert {"berths", "arrived_at", "queue", "score"} <= set(schema["observation"]["properties"])
    assert {"tide", "berthed"} <= set(schema["state"]["properties"])
    with GenericEnvClient(base_url=url).sync() as env:
        assert env.reset().observation["berths"] == ["north", "south"]
        result = env.step({"berth": "south"})
        assert result.observation["queue"] == [0, 1]
        assert result.reward == 1.0
        assert env.step(GenericAction(berth="north")).done is False
        assert env.state()["berthed"] == ["south", "north"]


@check
def metadata_is_the_environments_own(url: str) -> None:
    answer = http("GET", url + "/metadata").json
    assert answer["name"] == "Harbor"
    assert answer["description"] == "Ships that wait for a berth"
    assert answer["version"] == "2.3.4"
    assert answer["author"] == "The pilots"


@check
def http_answers_as_the_environment_does(url: str) -> None:
    answer = http("POST", url + "/reset", {"tide": 4})
    assert answer.status == 200
    assert answer.json["observation"]["queue"] == [0, 1, 2]
    assert set(answer.json) - {"metadata"} == {"observation", "reward", "done"}
    assert http("GET", url + "/state").json["berthed"] == []
    assert http("GET", url + "/health").json == {"status": "healthy"}
    assert http("GET", url + "/list_environments").json == ["harbor_env"]


@check
def tasks_of_an_environment_without_any_are_501(url: str) -> None:
    assert http("GET", url + "/harbor_env/splits").status == 501
    assert http("POST", url + "/harbor_env/num_tasks", {"split": "train"}).status == 501


@check
def a_value_out_of_its_bounds_is_refused(url: str) -> None:
    with websocket(url) as socket:
        ask(socket, {"type": "reset"})
        refused = ask(socket, {"type": "step", "data": {"berth": "south", "wait_s": 1000}})
        assert refused["data"]["code"] == "VALIDATION_ERROR"
        assert refused["data"]["message"] == "Invalid message"
        assert "wait_s" in json.dumps(refused["data"]["errors"])
        assert ask(socket, {"type": "step", "data": {"berth": "south"}})["data"]["reward"] == 1.0


@check_ours
def an_environment_that_is_asked_too_early_is_told_over_http(url: str) -> None:
    answer = http("POST", url + "/step", {"action": {"berth": "south"}})
    assert answer.status == 500
    assert "no ship has been announced" in json.dumps(answer.json)


@check_ours
def http_sessions_of_an_async_environment_remember(url: str) -> None:
    session = http("POST", url + "/sessions", {}).json["session_id"]
    http("POST", url + "/reset", {"tide": 6}, X_Session_ID=session)
    for count in range(1, 4):
        step = http("POST", url + "/step", {"action": {"berth": "south"}}, X_Session_ID=session)
        assert step.json["done"] is (count == 3), step
    state = http("GET", url + "/state", None, X_Session_ID=session).json
    assert (state["tide"], state["berthed"]) == (6.0, ["south"] * 3)
    assert http("DELETE", f"{url}/sessions/{session}").status in (200, 204)


@check_ours
def a_step_over_http_keeps_to_its_timeout(url: str) -> None:
    session = http("POST", url + "/sessions", {}).json["session_id"]
    http("POST", url + "/reset", {}, X_Session_ID=session)
    began = time.monotonic()
    body = {"action": {"berth": "south", "wait_s": 30}, "timeout_s": 0.3}
    late = http("POST", url + "/step", body, X_Session_ID=session)
    assert time.monotonic() - began < 10
    assert late.status in (500, 504), late
    http("DELETE", f"{url}/sessions/{session}")


if __name__ == "__main__":
    main()
