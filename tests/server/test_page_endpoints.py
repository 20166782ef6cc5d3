"""What is behind the page at `/web`: sessions of visitors, and what there is to see with every answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv.server.page import episode
from openenv.server.page.episode import ACTION_BYTES, HTML_BYTES, MOST_ACTIONS

from .stage import AsyncStage, InlineAsyncDrawing, InlineStage, Stage, StageAction, TooDeep, app_of
from .wires import eventually

EVERYWHERE = [Stage, InlineStage, AsyncStage]


@pytest.fixture(autouse=True)
def curtain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(episode, "DRAWING_S", 20.0)  # so that a machine that halts for a moment loses none
    Stage.gate.clear()
    Stage.left.clear()
    yield
    Stage.gate.set()


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app_of()) as client:
        yield client


class Visitor:
    """Somebody at a page, who sends what the page sends."""

    def __init__(self, client: TestClient):
        self._client = client
        opened = client.post("/sessions")
        client.cookies.clear()
        assert opened.status_code == 200, opened.text
        self.id = opened.json()["session_id"]
        self.headers = {"X-Session-ID": self.id, "X-Session-Token": opened.json()["token"]}

    def reset(self, **arguments: Any) -> Any:
        return self._told(self._client.post("/web/reset", json=arguments, headers=self.headers))

    def step(self, line: str = "", **fields: Any) -> Any:
        body = {"action": {"line": line, **fields}}
        return self._told(self._client.post("/web/step", json=body, headers=self.headers))

    def state(self) -> Any:
        return self._told(self._client.get("/web/state", headers=self.headers))

    def leave(self) -> None:
        assert self._client.delete(f"/sessions/{self.id}", headers=self.headers).status_code == 200

    def _told(self, answer: Any) -> Any:
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()


def error_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_an_episode_with_what_there_is_to_see_wherever_it_runs(environment):
    with TestClient(app_of(environment)) as client:
        visitor = Visitor(client)
        first = visitor.reset(seed=4)
        assert first["observation"]["said"] == "reset"
        assert (first["session_id"], first["episode_id"], first["step_count"]) == (visitor.id, "seed-4", 0)
        assert first["state"] == {"episode_id": "seed-4", "step_count": 0}
        assert first["html"] == "<b>reset</b> None"
        assert first["actions"] == [
            {"label": "Hello", "action": {"line": "hello"}},
            {"label": "End", "action": {"line": "end"}},
        ]
        assert (first["notes"], first["reward"], first["done"]) == ([], None, False)
        assert 0 <= first["duration_s"] < 20
        assert "token" not in first
        step = visitor.step("hello", times=2)
        assert (step["observation"]["said"], step["reward"], step["step_count"]) == ("hellohello", 0.5, 1)
        assert step["html"] == "<b>hellohello</b> 0.5"
        assert visitor.state() == {"episode_id": "seed-4", "step_count": 1}
        assert visitor.step("end")["done"] is True
        visitor.leave()


def test_it_is_drawn_on_the_thread_of_the_environment(client):
    visitor = Visitor(client)
    visitor.reset()
    visitor.step("hello")
    assert len(Stage.threads) == 1


@pytest.mark.parametrize("way", ["token", "cookie"])
def test_two_visitors_have_episodes_of_their_own(way):
    with TestClient(app_of()) as one, TestClient(one.app) as other:
        if way == "token":
            first, second = Visitor(one), Visitor(one)
            first.reset(seed=1)
            second.reset(seed=2)
            for _ in range(3):
                first.step("a")
            assert second.step("b")["step_count"] == 1
            assert first.step("a")["step_count"] == 4
            assert (first.state()["episode_id"], second.state()["episode_id"]) == ("seed-1", "seed-2")
        else:
            assert one.post("/web/reset", json={"seed": 1}).json()["episode_id"] == "seed-1"
            one.post("/web/step", json={"action": {"line": "a"}})
            assert other.post("/web/step", json={"action": {}}).json()["error"] == "ResetRequired"
            assert one.get("/web/state").json()["step_count"] == 1


def test_a_reset_that_names_no_session_opens_one(client):
    told = client.post("/web/reset").json()
    assert client.cookies["openenv_session"] == told["session_id"]
    assert client.post("/web/step", json={"action": {"line": "x"}}).json()["session_id"] == told["session_id"]
    assert client.post("/web/reset").json()["session_id"] == told["session_id"]
    client.cookies.clear()
    assert error_of(client.get("/web/state")) == (409, "ResetRequired")
    headers = {"X-Session-ID": told["session_id"], "X-Session-Token": told["token"]}
    assert client.get("/web/state", headers=headers).json()["step_count"] == 0
    assert client.post("/web/reset").json()["session_id"] != told["session_id"]
    assert client.app.state.openenv.active_sessions == 2


def test_without_a_session_there_is_no_step_and_no_state(client):
    for answer in (client.post("/web/step", json={"action": {}}), client.get("/web/state")):
        assert error_of(answer) == (409, "ResetRequired")
        assert "POST /web/reset" in answer.json()["message"]
    assert client.app.state.openenv.active_sessions == 0


def test_a_session_that_has_ended_is_unknown_and_a_cookie_of_it_is_forgotten(client):
    visitor = Visitor(client)
    visitor.reset()
    visitor.leave()
    for method, path, body in [
        ("POST", "/web/reset", {}),
        ("POST", "/web/step", {"action": {}}),
        ("GET", "/web/state", None),
    ]:
        answer = client.request(method, path, json=body, headers=visitor.headers)
        assert error_of(answer) == (404, "UnknownSession")
        assert "closed by its client" in answer.json()["message"]
    client.cookies.set("openenv_session", visitor.id)
    assert error_of(client.post("/web/step", json={"action": {}})) == (404, "UnknownSession")
    told = client.post("/web/reset").json()
    assert told["session_id"] != visitor.id


def test_a_session_that_was_idle_for_too_long_is_gone():
    with TestClient(app_of(idle_timeout_s=0.05)) as client:
        visitor = Visitor(client)
        gone = client.portal.call(_idle, client.app, visitor.id)
        assert "idle for 0.05 s" in gone
        answer = client.post("/web/step", json={"action": {}}, headers=visitor.headers)
        assert error_of(answer) == (404, "UnknownSession")
        assert "idle" in answer.json()["message"]


async def _idle(app: FastAPI, name: str) -> str:
    shared_sessions = app.state.openenv.shared_sessions
    ended = asyncio.Event()
    shared = shared_sessions._sessions[name]
    if shared.departed is None:
        shared.on_lost.append(lambda error: ended.set())
        await asyncio.wait_for(ended.wait(), 10)
    return str(shared.departed)


def test_what_fails_is_told_and_the_episode_goes_on(client):
    visitor = Visitor(client)
    visitor.reset()
    answer = client.post("/web/step", json={"action": {"line": "break"}}, headers=visitor.headers)
    assert error_of(answer) == (500, "StepFailed")
    assert "the stage broke" in answer.json()["message"]
    answer = client.post("/web/step", json={"action": {"times": 9}}, headers=visitor.headers)
    assert error_of(answer) == (422, "InvalidAction")
    assert answer.json()["detail"][0]["loc"] == ["times"]
    for body in ({}, {"action": "left"}, {"action": {}, "timeout_s": -1}, []):
        assert error_of(client.post("/web/step", json=body, headers=visitor.headers)) == (422, "InvalidAction")
    assert error_of(client.post("/web/reset", json={"seed": -1}, headers=visitor.headers)) == (422, "InvalidAction")
    assert visitor.step("x")["step_count"] == 1


def test_a_first_reset_that_fails_leaves_no_session_behind():
    class Closed(Stage):
        def reset(self, *arguments: Any, **further: Any) -> Any:
            raise ValueError("closed today")

    with TestClient(app_of(Closed)) as client:
        assert error_of(client.post("/web/reset")) == (500, "StepFailed")
        assert "openenv_session" not in client.cookies
        eventually(lambda: client.app.state.openenv.active_sessions == 0)  # it is closed on its thread


def test_without_room_it_is_said_when_to_come_again():
    with TestClient(app_of(max_sessions=1, queue_timeout_s=0)) as client:
        visitor = Visitor(client)
        answer = client.post("/web/reset")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        visitor.leave()
        assert client.post("/web/reset").status_code == 200


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_numbers_that_json_has_not_are_text(environment):
    with TestClient(app_of(environment)) as client:
        visitor = Visitor(client)
        visitor.reset()
        assert visitor.step("nan")["observation"]["value"] in ("NaN", None)
        body = '{"action": {"line": "x", "odd": [NaN, Infinity, -Infinity]}}'
        headers = {**visitor.headers, "Content-Type": "application/json"}
        answer = client.post("/web/step", content=body, headers=headers)
        assert answer.status_code == 200
        value = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert value["observation"]["value"] in (["NaN", "Infinity", "-Infinity"], [None, None, None])


@pytest.mark.parametrize("environment", EVERYWHERE)
@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("raise", "render_web raised LookupError: no such picture"),
        ("number", "render_web returned a int: it must return HTML as text"),
        ("huge", f"more than {HTML_BYTES >> 20} MiB"),
    ],
)
def test_a_drawing_that_fails_is_noted_and_fails_no_step(environment, line, note):
    with TestClient(app_of(environment)) as client:
        visitor = Visitor(client)
        visitor.reset()
        step = visitor.step(line)
        assert (step["step_count"], step["html"], step["reward"]) == (1, None, 0.5)
        assert [note in said for said in step["notes"]] == [True]
        assert len(step["actions"]) == 2
        assert visitor.step("hello")["html"] == "<b>hello</b> 0.5"


@pytest.mark.parametrize("environment", [Stage, AsyncStage])
def test_a_drawing_that_would_end_the_process_is_noted(environment):
    with TestClient(app_of(environment)) as client:
        visitor = Visitor(client)
        visitor.reset()
        step = visitor.step("exit")
        assert step["step_count"] == 1
        assert step["notes"]
        assert visitor.step("hello")["step_count"] == 2


def test_no_drawing_and_one_that_is_no_text_of_this_world(client):
    visitor = Visitor(client)
    visitor.reset()
    assert visitor.step("nothing")["html"] is None
    assert visitor.step("surrogate")["html"] == "<i>?</i>"


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_actions_that_are_none_are_shown_with_what_is_wrong(environment):
    with TestClient(app_of(environment)) as client:
        visitor = Visitor(client)
        visitor.reset()
        step = visitor.step("badly")
        good, unknown, outside = step["actions"]
        assert (good["label"], good["action"]["line"]) == ("Good", "good")
        assert "error" not in good
        assert "nessage" in unknown["error"]
        assert "times" in outside["error"]
        notes = "\n".join(step["notes"])
        assert "'Unknown field', which is not a valid action" in notes
        assert "action 4 of web_actions is not shown: a str stands where the fields of an action should" in notes
        for place in (5, 7):
            assert f"action {place} of web_actions is not shown" in notes
        assert "action 6 of web_actions is not shown: its label is a int" in notes
        assert f"over the limit of {ACTION_BYTES}" in notes
        assert step["html"] == "<b>badly</b> 0.5"


@pytest.mark.parametrize(
    ("line", "count", "note"),
    [
        ("many", MOST_ACTIONS, "300 actions, of which the first 200"),
        ("none", 0, ""),
        ("text", 0, "web_actions returned a str: it must return a list"),
        ("refuse", 0, "web_actions raised LookupError"),
    ],
)
def test_what_is_offered_has_limits(client, line, count, note):
    visitor = Visitor(client)
    visitor.reset()
    step = visitor.step(line)
    assert len(step["actions"]) == count
    assert note in "\n".join(step["notes"])


@pytest.mark.parametrize("environment", EVERYWHERE)
def test_a_state_that_fails_is_noted(environment):
    with TestClient(app_of(environment)) as client:
        visitor = Visitor(client)
        visitor.reset()
        step = visitor.step("stateless")
        assert (step["state"], step["html"], step["step_count"]) == (None, "<b>stateless</b> 0.5", 1)
        assert "no state to be had" in step["notes"][0]


@pytest.mark.parametrize(
    "said", [7, "no json", '{"html": 7}', '{"actions":[["a",{"x":' + "[" * 5000 + "]" * 5000 + "}]]}"]
)
def test_a_process_that_says_what_is_no_drawing_is_noted(client, monkeypatch, said):
    visitor = Visitor(client)
    visitor.reset()
    monkeypatch.setattr(episode, "draw", lambda environment, fields: said)
    step = visitor.step("hello")
    assert (step["step_count"], step["html"], len(step["notes"])) == (1, None, 1)
    assert step["notes"][0].startswith("render_web: ")
    monkeypatch.undo()
    assert visitor.step("hello")["html"] == "<b>hello</b> 0.5"


def test_a_drawing_that_takes_long_is_not_waited_for(monkeypatch):
    draws = threading.Event()

    class Slow(Stage):
        def draw_wait(self) -> str:
            draws.set()
            return super().draw_wait()

    wait = episode._FollowUp.wait

    async def wait_while_it_draws(aftermath: Any) -> None:
        assert await asyncio.to_thread(draws.wait, 20)
        await wait(aftermath)

    with TestClient(app_of(Slow)) as client:
        visitor = Visitor(client)
        visitor.reset()
        with monkeypatch.context() as patch:
            patch.setattr(episode, "DRAWING_S", 0.05)
            patch.setattr(episode._FollowUp, "wait", wait_while_it_draws)
            step = visitor.step("wait")
        assert (step["step_count"], step["html"], step["state"]["step_count"]) == (1, None, 1)
        assert "gave no answer within 0.05 s" in step["notes"][0]
        Stage.gate.set()
        assert visitor.step("hello")["html"] == "<b>hello</b> 0.5"
        assert Stage.left.is_set()


def test_a_drawing_that_never_ends_costs_its_visitor_the_session_and_nobody_else(client, monkeypatch):
    visitor, other = Visitor(client), Visitor(client)
    visitor.reset()
    other.reset()
    with monkeypatch.context() as patch:
        patch.setattr(episode, "DRAWING_S", 0.02)
        patch.setattr(episode, "STUCK_S", 0.1)
        assert visitor.step("wait")["step_count"] == 1
    answer = client.post("/web/step", json={"action": {}}, headers=visitor.headers)
    assert answer.status_code == 404
    assert "a thread cannot be stopped" in answer.json()["message"]
    assert other.step("x")["step_count"] == 1
    Stage.gate.set()


def test_an_asynchronous_drawing_that_never_ends_is_stopped_and_the_session_stays(monkeypatch):
    class Endless(AsyncStage):
        async def render_web(self, obs: Any) -> Any:
            await asyncio.sleep(0 if obs.said != "wait" else 3600)

    monkeypatch.setattr(episode, "DRAWING_S", 0.02)
    monkeypatch.setattr(episode, "STUCK_S", 0.1)
    with TestClient(app_of(Endless)) as client:
        visitor = Visitor(client)
        visitor.reset()
        assert "gave no answer" in visitor.step("wait")["notes"][0]
        on = {"action": {"line": "on"}, "timeout_s": 5}
        assert client.post("/web/step", json=on, headers=visitor.headers).json()["step_count"] == 2


def test_a_first_reset_that_cannot_be_shown_leaves_no_session_behind():
    with TestClient(app_of(TooDeep)) as client:
        TooDeep.levels = 240
        for _ in range(20):
            TooDeep.levels += 1
            answer = client.post("/web/reset")
            client.cookies.clear()
            if answer.status_code != 200:
                break
            client.delete(f"/sessions/{answer.json()['session_id']}")
        assert error_of(answer) == (500, "StepFailed")
        assert client.get("/sessions").json() == []


def test_where_nobody_can_wait_an_asynchronous_drawing_is_noted():
    with TestClient(app_of(InlineAsyncDrawing)) as client:
        visitor = Visitor(client)
        told = visitor.reset()
        assert told["html"] is None
        assert "make it a plain method" in told["notes"][0]


def test_a_class_that_draws_nothing_shows_the_default_view():
    class Bare:
        def reset(self) -> dict[str, Any]:
            return {"said": "bare"}

        def step(self, action: StageAction) -> dict[str, Any]:
            return {"said": action.line, "reward": 1.0}

        state = {"step_count": 7}

    with TestClient(app_of(Bare, max_sessions=1)) as client:
        told = client.post("/web/reset", json={"seed": 1}).json()
        assert (told["html"], told["actions"], told["notes"], told["step_count"]) == (None, [], [], 7)
        assert told["metadata"] == {"seedable": False}


def test_bodies_that_are_too_large_are_refused():
    with TestClient(app_of(max_message_mb=0.01)) as client:
        large = {"action": {"line": "x", "odd": "x" * 20_000}}
        for path in ("/web/step", "/web/reset"):
            answer = client.post(path, json=large)
            assert error_of(answer) == (413, "MessageTooLarge")
            assert "OPENENV_MAX_MESSAGE_MB" in answer.json()["message"]


def test_calls_of_one_session_take_turns_each_with_its_own_drawing(client):
    visitor = Visitor(client)
    visitor.reset()
    lines = [f"line-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        steps = list(pool.map(visitor.step, lines))
    assert sorted(step["step_count"] for step in steps) == list(range(1, 9))
    for line, step in zip(lines, steps, strict=True):
        assert step["html"] == f"<b>{line}</b> 0.5"
        assert step["state"]["step_count"] == step["step_count"]


def test_a_time_limit_is_kept_while_a_drawing_is_in_the_way(client, monkeypatch):
    monkeypatch.setattr(episode, "DRAWING_S", 0.02)
    visitor = Visitor(client)
    visitor.reset()
    visitor.step("wait")
    answer = client.post("/web/step", json={"action": {}, "timeout_s": 0.05}, headers=visitor.headers)
    assert error_of(answer) == (504, "StepTimeout")
    assert "was not executed" in answer.json()["message"]
    Stage.gate.set()
    assert visitor.step("x")["step_count"] == 2


KEYS = {"api_keys": "control:the-key-of-those-in-control,control:another-key-of-control,agent:the-key-of-an-agent"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_session_belongs_to_its_key_or_its_token():
    with TestClient(app_of(**KEYS)) as client:
        mine, theirs = bearer("the-key-of-those-in-control"), bearer("another-key-of-control")
        told = client.post("/web/reset", headers=mine).json()
        client.cookies.clear()
        name = {"X-Session-ID": told["session_id"]}
        assert error_of(client.get("/web/state", headers={**theirs, **name})) == (401, "Unauthorized")
        assert client.get("/web/state", headers={**mine, **name}).status_code == 200
        token = {"X-Session-Token": told["token"]}
        assert client.get("/web/state", headers={**theirs, **name, **token}).status_code == 200
        wrong = {"X-Session-Token": "wrong"}
        assert error_of(client.get("/web/state", headers={**mine, **name, **wrong})) == (401, "Unauthorized")
        assert error_of(client.get("/web/state", headers={**bearer("the-key-of-an-agent"), **name, **token})) == (
            403,
            "Forbidden",
        )


@pytest.mark.parametrize("settings", [{"web_interface": False}, {"mode": "production"}])
def test_where_it_is_off_there_is_nothing(settings):
    with TestClient(app_of(**settings)) as client:
        for method, path in [
            ("GET", "/"),
            ("GET", "/web"),
            ("GET", "/web/"),
            ("GET", "/web/frame"),
            ("GET", "/web/assets/a.js"),
            ("GET", "/web/metadata"),
            ("GET", "/web/panel"),
            ("POST", "/web/reset"),
            ("POST", "/web/step"),
            ("GET", "/web/state"),
        ]:
            assert client.request(method, path, json={"action": {}} if method == "POST" else None).status_code == 404
        assert not [path for path in client.get("/openapi.json").json()["paths"] if path.startswith("/web")]


def test_what_scripts_use_is_in_the_document_of_routes(client):
    documented = client.get("/openapi.json").json()["paths"]
    assert {path for path in documented if path.startswith("/web")} == {
        "/web/metadata",
        "/web/panel",
        "/web/reset",
        "/web/step",
        "/web/state",
    }
    assert documented["/web/step"]["post"]["tags"] == ["web"]
    assert [parameter["name"] for parameter in documented["/web/step"]["post"]["parameters"]] == [
        "X-Session-ID",
        "openenv_session",
    ]


class Secret(Stage):
    SHOW_STATE = False


def test_a_class_may_hide_its_state_from_the_page():
    with TestClient(app_of(Secret)) as client:
        visitor = Visitor(client)
        answers = [visitor.reset(), visitor.step("hello")]
        assert [(answer["state"], answer["step_count"]) for answer in answers] == [(None, 0), (None, 1)]
        assert visitor.state() is None
        assert client.get("/web/metadata").json()["show_state"] is False
        shown = Visitor(client)  # its clients read it
        shown.reset()
        assert client.get("/state", headers=shown.headers).json()["step_count"] == 0
