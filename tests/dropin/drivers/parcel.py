"""Drives a server of the parcel environment: a client that parses for itself, and an app that was changed."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any

from checks import ask, check, check_ours, fails, http, main, websocket
from parcel_env import Parcel, ParcelAction, ParcelEnv, ParcelObservation, ParcelState

HEAVY = Parcel(weight_kg=30)


@check
def an_episode_runs_to_its_end(url: str) -> None:
    with ParcelEnv(base_url=url).sync() as env:
        result = env.reset(seed=5, depot="north", parcels=2)
        assert isinstance(result.observation, ParcelObservation)
        assert result.reward is None
        assert result.done is False
        assert result.observation.vans["small"].limit_kg == 10.0
        assert result.observation.metadata == {"left": 2}
        result = env.step(ParcelAction(van="large", parcel=Parcel(weight_kg=3, labels=["x"]), note="hi"))
        assert result.reward == 1.0
        assert result.observation.message == "hi"
        assert result.observation.vans["large"].parcels == [Parcel(weight_kg=3, labels=["x"])]
        assert isinstance(result.observation.belt, Parcel)
        result = env.step(ParcelAction(van="large"))
        assert (result.done, result.reward, result.observation.belt) == (True, 1.0, None)


@check
def a_state_that_is_a_plain_object_arrives(url: str) -> None:
    with ParcelEnv(base_url=url).sync() as env:
        env.reset(depot="north", episode_id="mine")
        env.step(ParcelAction(van="large", parcel=HEAVY))
        state = env.state()
        assert isinstance(state, ParcelState)
        assert (state.episode_id, state.step_count, state.depot, state.delivered_kg) == ("mine", 1, "north", 30.0)


@check
def the_same_seed_gives_the_same_parcels(url: str) -> None:
    def belt() -> list[float]:
        with ParcelEnv(base_url=url).sync() as env:
            weights = [env.reset(seed=11, parcels=9).observation.belt.weight_kg]
            weights += [env.step(ParcelAction(van="large")).observation.belt.weight_kg for _ in range(4)]
            return weights

    assert belt() == belt()


@check
def reset_arguments_that_the_environment_does_not_take_are_left_out(url: str) -> None:
    with ParcelEnv(base_url=url).sync() as env:
        assert env.reset(prompt="a column of a data set", parcels=1).observation.metadata == {"left": 1}


@check
def what_the_environment_raises_is_told_and_the_session_goes_on(url: str) -> None:
    with ParcelEnv(base_url=url).sync() as env:
        with fails("reset first"):
            env.step(ParcelAction(van="small"))
        with fails("at least one parcel"):
            env.reset(parcels=0)
        env.reset()
        broken = env.step(ParcelAction(van="small", parcel=HEAVY))
        assert (broken.done, broken.reward, broken.observation.message) == (True, -1.0, "the small van broke")


@check
def an_action_that_does_not_validate_is_refused_and_the_session_goes_on(url: str) -> None:
    with ParcelEnv(base_url=url).sync() as env:
        env.reset()
        with fails(""):
            env.step(ParcelAction.model_construct(van="blue", parcel=None, note=""))
        assert env.step(ParcelAction(van="large")).reward == 1.0


@check
def a_client_with_methods_of_its_own_has_them_synchronously_too(url: str) -> None:
    class Courier(ParcelEnv):
        def __init__(self, base_url: str, name: str = "nobody", **kwargs: Any):
            super().__init__(base_url, **kwargs)
            self.name = name

        async def deliver(self, count: int) -> float:
            await self.reset(parcels=count)
            return sum([(await self.step(ParcelAction(van="large"))).reward for _ in range(count)])

        def greet(self) -> str:
            return f"I am {self.name}"

    with Courier(url, name="Ann").sync() as courier:
        assert courier.deliver(3) == 3.0
        assert courier.greet() == "I am Ann"
        assert courier.name == "Ann"
        with fails("fly"):
            courier.fly()

    async def play() -> float:
        async with Courier(url) as courier:
            return await courier.deliver(2)

    assert asyncio.run(play()) == 2.0


@check
async def the_same_works_asynchronously(url: str) -> None:
    async with ParcelEnv(base_url=url) as env:
        result = await env.reset(parcels=1)
        assert result.observation.metadata == {"left": 1}
        result = await env.step(ParcelAction(van="large"))
        assert result.done
        with fails("at least one parcel"):
            await env.reset(parcels=0)
        assert (await env.state()).step_count == 1


@check
async def concurrent_sessions_are_apart(url: str) -> None:
    async def play(number: int) -> None:
        async with ParcelEnv(base_url=url) as env:
            await env.reset(depot=f"depot {number}", parcels=20)
            for done in range(1, 8):
                note = f"{number}-{done}"
                result = await env.step(ParcelAction(van="large", parcel=Parcel(weight_kg=0.5), note=note))
                assert result.observation.message == note
                assert result.observation.metadata == {"left": 20 - done}
            state = await env.state()
            assert (state.depot, state.step_count) == (f"depot {number}", 7)

    await asyncio.gather(*(play(number) for number in range(16)))


@check
def thirty_two_threads_step_synchronously(url: str) -> None:
    """As SkyRL does it: a client a thread, plain calls, no event loop anywhere."""
    together = threading.Barrier(32)

    def play(number: int) -> float:
        env = ParcelEnv(base_url=url)
        try:
            env.reset(depot=str(number), parcels=9)
            together.wait(60)
            total = 0.0
            for _ in range(4):
                total += env.step(ParcelAction(van="large", parcel=Parcel(weight_kg=1 + number / 100))).reward
            assert env.state().depot == str(number)
            return total
        finally:
            env.close()

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(play, range(32))) == [4.0] * 32


@check
def http_without_a_session_is_a_new_environment_each_time(url: str) -> None:
    for _ in range(2):
        answer = http("POST", url + "/reset", {"depot": "s", "parcels": 2})
        assert answer.status == 200, answer
        assert answer.json["observation"]["metadata"] == {"left": 2}
        assert answer.json["done"] is False
        assert answer.json["reward"] is None
    assert http("POST", url + "/step", {"action": {"van": "small"}}).status == 500
    assert http("GET", url + "/state").json["step_count"] == 0


@check
def a_wrong_action_over_http_is_422_and_names_the_field(url: str) -> None:
    answer = http("POST", url + "/step", {"action": {"van": "blue"}})
    assert answer.status == 422
    assert any("van" in problem["loc"] for problem in answer.json["detail"]), answer
    answer = http("POST", url + "/step", {})
    assert answer.status == 422
    assert any("action" in problem["loc"] for problem in answer.json["detail"]), answer


@check
def the_app_has_the_authors_routes_and_not_the_one_that_was_deleted(url: str) -> None:
    assert http("GET", url + "/depots").json == ["north", "south"]
    assert http("GET", url + "/metadata").json["vans"] == ["small", "large"]


@check
def the_authors_middleware_sees_every_request(url: str) -> None:
    for path in ("/health", "/schema", "/depots", "/no/such"):
        assert http("GET", url + path).headers["X-Parcel-Office"] == "open", path


@check
def the_schema_tells_the_environments_own_fields(url: str) -> None:
    schema = http("GET", url + "/schema").json
    assert set(schema["action"]["properties"]) == {"metadata", "van", "parcel", "note"}
    assert {"vans", "belt", "message"} <= set(schema["observation"]["properties"])
    assert "Parcel" in schema["action"]["$defs"]


@check
def the_openapi_document_is_served(url: str) -> None:
    document = http("GET", url + "/openapi.json").json
    assert isinstance(document["info"]["version"], str)
    assert {"/reset", "/step", "/state", "/schema", "/health", "/depots", "/mcp"} <= set(document["paths"])
    assert http("GET", url + "/docs").status == 200


@check
def tasks_are_told_over_http(url: str) -> None:
    base = url + "/parcel_env"
    north = [{"depot": "north", "parcels": count} for count in (1, 2, 3)]
    assert http("GET", base + "/splits").json == [
        {"name": "train", "type": "train"},
        {"name": "test", "type": "test"},
    ]
    assert http("POST", base + "/tasks", {"split": "train"}).json["tasks"] == north
    assert http("POST", base + "/num_tasks", {"split": "train"}).json == {"num_tasks": 3}
    assert http("POST", base + "/task", {"split": "train", "index": 1}).json == {"task": north[1]}
    assert http("POST", base + "/task_range", {"split": "train", "start": 1}).json == {"tasks": north[1:]}
    assert http("POST", base + "/task_range", {"split": "train", "start": 0, "stop": 1}).json == {"tasks": north[:1]}


@check
def a_wrong_task_is_refused_with_the_right_status(url: str) -> None:
    base = url + "/parcel_env"
    assert http("POST", base + "/task", {"split": "train", "index": 9}).status == 400
    assert http("POST", base + "/task", {"split": "train"}).status == 422
    assert http("GET", url + "/other_env/splits").status == 404


@check
def frames_of_the_first_version_are_answered(url: str) -> None:
    with websocket(url) as socket:
        assert ask(socket, {"type": "reset", "data": {"parcels": 2}})["data"]["metadata"] == {"left": 2}
        reply = ask(socket, {"type": "step", "data": {"van": "large"}})
        assert reply["type"] == "observation"
        assert set(reply["data"]) == {"observation", "reward", "done", "metadata"}
        assert set(reply["data"]["observation"]) == {"metadata", "vans", "belt", "message"}
        assert ask(socket, {"type": "state"})["data"]["step_count"] == 1
        assert ask(socket, "{")["data"]["code"] == "INVALID_JSON"
        assert ask(socket, {"type": "nothing"})["data"]["code"] == "UNKNOWN_TYPE"
        assert ask(socket, {"type": "step", "data": {"van": "blue"}})["data"]["code"] == "VALIDATION_ERROR"
        assert ask(socket, {"type": "reset", "data": {"parcels": 0}})["data"]["code"] == "EXECUTION_ERROR"
        assert ask(socket, {"type": "state"})["type"] == "state"
        socket.send(json.dumps({"type": "close"}))
        _closed_normally(socket)


@check_ours
def a_validator_of_the_environment_that_raises_is_a_refused_action(url: str) -> None:
    with ParcelEnv(base_url=url).sync() as env:
        env.reset()
        with fails("not shouted"):
            env.step(ParcelAction.model_construct(van="small", parcel=None, note="LOUD"))
        assert env.step(ParcelAction(van="large")).reward == 1.0


@check_ours
def http_failures_are_json_with_the_error(url: str) -> None:
    failed = http("POST", url + "/step", {"action": {"van": "small"}})
    assert failed.status == 500
    assert "reset first" in json.dumps(failed.json), failed
    refused = http("POST", url + "/step", {"action": {"van": "small", "note": "LOUD"}})
    assert refused.status == 422
    assert "not shouted" in json.dumps(refused.json["detail"])


@check_ours
def http_with_a_session_remembers(url: str) -> None:
    opened = http("POST", url + "/sessions", {})
    assert opened.status in (200, 201), opened
    session = opened.json["session_id"]
    try:
        assert opened.json["token"]
        reset = http("POST", url + "/reset", {"parcels": 9, "depot": "west"}, X_Session_ID=session)
        assert reset.json["observation"]["metadata"] == {"left": 9}
        for left in (8, 7, 6, 5, 4, 3):
            step = http("POST", url + "/step", {"action": {"van": "large"}}, X_Session_ID=session)
            assert step.status == 200, step
            assert step.json["observation"]["metadata"] == {"left": left}
        state = http("GET", url + "/state", None, X_Session_ID=session).json
        assert (state["step_count"], state["depot"]) == (6, "west")
        by_cookie = http("GET", url + "/state", None, Cookie=f"session_id={session}")
        assert by_cookie.status == 200, by_cookie
    finally:
        assert http("DELETE", f"{url}/sessions/{session}").status in (200, 204)
    assert http("GET", url + "/state", None, X_Session_ID=session).status == 404


@check_ours
def one_kept_connection_reaches_sessions_of_all_workers(url: str) -> None:
    sessions = [http("POST", url + "/sessions", {}).json["session_id"] for _ in range(8)]
    connection = HTTPConnection(url.removeprefix("http://"), timeout=30)

    def ask_over_it(method: str, path: str, body: Any, session: str) -> Any:
        headers = {"content-type": "application/json", "X-Session-ID": session}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, (answer.status, content)
        return json.loads(content)

    for number, session in enumerate(sessions):
        ask_over_it("POST", "/reset", {"parcels": 9, "depot": f"depot {number}"}, session)
    used = connection.sock
    for left in (8, 7):
        for session in sessions:
            step = ask_over_it("POST", "/step", {"action": {"van": "large"}}, session)
            assert step["observation"]["metadata"] == {"left": left}
    for number, session in enumerate(sessions):
        state = ask_over_it("GET", "/state", None, session)
        assert (state["depot"], state["step_count"]) == (f"depot {number}", 2)
    assert connection.sock is used
    connection.close()
    for session in sessions:
        assert http("DELETE", f"{url}/sessions/{session}").status in (200, 204)


@check_ours
def a_socket_attaches_to_an_http_session(url: str) -> None:
    session = http("POST", url + "/sessions", {}).json["session_id"]
    http("POST", url + "/reset", {"parcels": 9, "depot": "east"}, X_Session_ID=session)
    for _ in range(3):
        with websocket(url, f"/ws?session_id={session}") as socket:
            assert ask(socket, {"type": "state"})["data"]["depot"] == "east"
            assert ask(socket, {"type": "step", "data": {"van": "large"}})["type"] == "observation"
    state = http("GET", url + "/state", None, X_Session_ID=session)
    assert state.json["step_count"] == 3, state
    assert http("DELETE", f"{url}/sessions/{session}").status in (200, 204)


@check_ours
def a_session_that_does_not_exist_is_404(url: str) -> None:
    answer = http("POST", url + "/step", {"action": {"van": "small"}}, X_Session_ID="nobody")
    assert answer.status == 404
    assert "nobody" in json.dumps(answer.json) or "session" in json.dumps(answer.json)


@check_ours
def tasks_out_of_range_say_what_to_do(url: str) -> None:
    base = url + "/parcel_env"
    answer = http("POST", base + "/task", {"split": "train", "index": 9})
    assert "9" in json.dumps(answer.json), answer
    assert http("POST", base + "/task", {"split": "train", "index": -7}).status == 400
    unknown = http("POST", base + "/tasks", {"split": "validation"})
    assert unknown.status in (400, 404, 500)
    assert "validation" in json.dumps(unknown.json), unknown


@check_ours
async def results_come_as_they_are_without_the_clients_own_parsing(url: str) -> None:
    from openenv.client import EnvClient

    class Derived(EnvClient[ParcelAction, ParcelObservation, ParcelState]):
        """Nothing overridden: all three are derived from the type arguments."""

    async with Derived(base_url=url) as env:
        result = await env.reset(parcels=2, depot="north")
        assert isinstance(result.observation, ParcelObservation)
        stepped = await env.step(ParcelAction(van="large", parcel=HEAVY))
        assert stepped.observation.vans["large"].parcels == [HEAVY]
        state: Any = await env.state()
        assert (type(state), state.depot) == (ParcelState, "north")


def _closed_normally(socket: Any) -> None:
    from websockets.exceptions import ConnectionClosed

    code = None
    with suppress(TimeoutError):
        try:
            socket.recv(timeout=30)
        except ConnectionClosed as closed:
            code = closed.rcvd and closed.rcvd.code
    assert code == 1000, code


if __name__ == "__main__":
    main()
