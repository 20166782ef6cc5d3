"""The endpoints of the page, of a server with several workers whose environments have processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from ..cli.process import Serving, serving
from ..cli.projects import write_module
from ..server.workers.whereabouts import eventually, workers_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="ends processes by their id"),
    pytest.mark.slow,
]

MODULE = """
import os
import signal

from openenv import Action, Environment, Observation, State


class Line(Action):
    line: str = ""


class Scene(Observation):
    pid: int


class Play(Environment[Line, Scene, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._line = ""
        self._steps = 0

    def reset(self, seed=None, episode_id=None, level: int = 1):
        self._steps = 0
        return Scene(pid=os.getpid())

    def step(self, action):
        self._line = action.line
        self._steps += 1
        return Scene(pid=os.getpid(), reward=1.0)

    @property
    def state(self):
        return State(step_count=self._steps)

    def render_web(self, obs):
        if self._line == "raise":
            raise LookupError("no picture")
        if self._line == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"<b>{self._line}</b> drawn in {os.getpid()}, seen in {obs.pid}"

    def web_actions(self, obs):
        return [("Raise", Line(line="raise")), ("Wrong", {"lines": 1}), 7]
"""


def visitor_of(url: str) -> dict[str, str]:
    """Over a connection of its own, so that all workers get some."""
    with httpx.Client(base_url=url, trust_env=False) as client:
        told = client.post("/sessions").raise_for_status().json()
        return {"X-Session-ID": told["session_id"], "X-Session-Token": told["token"]}


def told(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_visitors_at_every_worker_play_over_any_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "panel.html").write_text("<b>panel</b>")
    target = f"{write_module(tmp_path / 'play.py', MODULE).stem}:Play"
    with (
        serving(target, "--workers", "2", "--isolation", "process") as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        visitors = [visitor_of(server.url) for _ in range(4)]
        assert len({visitor["X-Session-ID"].partition(".")[0] for visitor in visitors}) == 2
        pids = []
        for number, visitor in enumerate(visitors):
            first = told(client.post("/web/reset", json={"level": 2}, headers=visitor))
            pids.append(first["observation"]["pid"])
            for _ in range(number):
                told(client.post("/web/step", json={"action": {"line": "x"}}, headers=visitor))
        assert len(set(pids)) == 4
        for number, (visitor, pid) in enumerate(zip(visitors, pids, strict=True)):
            step = told(client.post("/web/step", json={"action": {"line": str(number)}}, headers=visitor))
            assert (step["step_count"], step["session_id"]) == (number + 1, visitor["X-Session-ID"])
            assert step["html"] == f"<b>{number}</b> drawn in {pid}, seen in {pid}"
            assert step["actions"][0] == {"label": "Raise", "action": {"metadata": {}, "line": "raise"}}
            assert "lines" in step["actions"][1]["error"]
            assert "action 3 of web_actions is not shown" in "".join(step["notes"])
            assert told(client.get("/web/state", headers=visitor))["step_count"] == number + 1

        visitor = visitors[0]
        step = told(client.post("/web/step", json={"action": {"line": "raise"}}, headers=visitor))
        assert (step["html"], step["reward"]) == (None, 1.0)
        assert "render_web raised LookupError: no picture" in step["notes"]
        step = told(client.post("/web/step", json={"action": {"line": "die"}}, headers=visitor))
        assert (step["step_count"], step["reward"]) == (3, 1.0)
        assert "SIGKILL" in "".join(step["notes"])
        after = client.post("/web/step", json={"action": {}}, headers=visitor)
        assert (after.status_code, after.json()["error"]) == (500, "EnvironmentCrashed")
        assert told(client.post("/web/reset", json={}, headers=visitor))["step_count"] == 0

        about = told(client.get("/web/metadata"))
        assert about["reset_schema"]["properties"]["level"]["default"] == 1
        assert about["panel"] is True
        assert client.get("/web/panel").text == "<b>panel</b>"

        address = urlsplit(server.url).netloc
        for visitor in visitors:
            url = f"ws://{address}/ws/ui?session_id={visitor['X-Session-ID']}&token={visitor['X-Session-Token']}"
            with connect(url, proxy=None) as socket:
                assert json.loads(socket.recv())["type"] == "state_update"
                told(client.post("/web/step", json={"action": {"line": "y"}}, headers=visitor))
                episode = json.loads(socket.recv())["episode_state"]
                assert episode["action_logs"][-1]["action"]["line"] == "y"
            assert told(client.request("DELETE", f"/sessions/{visitor['X-Session-ID']}", headers=visitor))["closed"]
            assert client.get("/web/state", headers=visitor).status_code == 404
        assert client.get("/sessions").json() == []
        _survive_a_death(server)


def _survive_a_death(server: Serving) -> None:
    """A page, which names its session in a header, is told; a browser whose cookie names it gets another one."""
    visitor = visitor_of(server.url)
    workers = workers_of(server.pid)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: len(workers_of(server.pid)) == 2 and not {*workers} & {*workers_of(server.pid)})
    cookie = {"openenv_session": visitor["X-Session-ID"]}
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60, cookies=cookie) as browser:
        for path, body in (("/web/step", {"action": {}}), ("/web/reset", {})):
            gone = browser.post(path, json=body, headers=visitor)
            assert gone.status_code == 404
            assert gone.json()["error"] in {"SessionLost", "UnknownSession"}
        assert told(browser.post("/web/reset"))["session_id"] != visitor["X-Session-ID"]
