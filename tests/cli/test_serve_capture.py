"""`openenv serve --capture`: agents reach the engine through a proxy beside the environment."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from openenv import GenericEnvClient
from openenv.cli.main import app
from openenv.errors import UsageError
from tests.capture.requests import Agent, ask
from tests.model_server import ModelServer, model_server

from .process import serving


@pytest.fixture
def engine() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def test_an_agent_is_recorded_beside_its_environment(engine: ModelServer, tmp_path: Path) -> None:
    folder = str(tmp_path / "runs")
    # The server's keys are not those of agents.
    keys = {"OPENENV_API_KEYS": "control:the-key-of-the-environment", "OPENENV_CAPTURE_ADMIN_KEY": "an-admin-key"}
    with serving("echo", "--capture", engine.url, "--capture-folder", folder, **keys) as server:
        assert "capture at /capture" in server.announcement
        assert "fast path" in server.announcement
        with GenericEnvClient(server.url, api_key="the-key-of-the-environment").sync() as env:
            assert env.reset().observation is not None
            assert ask(server.url, "POST", "/capture/sessions", "an-admin-key", {"session_id": "one"})[0] == 200
            agent = Agent(server.url, "one", path="/capture/v1/chat/completions")
            agent.say("hello")
            assert agent.say("and on")["content"]
            status, document = ask(server.url, "GET", "/capture/sessions/one/rollout", "an-admin-key")
            assert (status, document["trainable"], document["stats"]["n_turns"]) == (200, True, 2)
            assert ask(server.url, "GET", "/capture/sessions", "another key")[0] == 401
        code, _ = server.end(signal.SIGTERM)
    assert code == 0
    (record,) = Path(folder).glob("*.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["session", "turn", "turn"]


def test_a_random_admin_key_is_announced(engine: ModelServer) -> None:
    with serving("echo", "--capture", engine.url) as server:
        found = re.search(r'admin key "([^"]+)"', server.announcement)
        assert found is not None
        assert ask(server.url, "GET", "/capture/sessions", found[1]) == (200, {"sessions": []})


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--capture", "http://x/v1", "--workers", "2"), "--capture needs one worker"), (("--capture", "x"), "llm_url")],
)
def test_what_cannot_be_served_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    monkeypatch.setenv("OPENENV_CAPTURE_ADMIN_KEY", "an-admin-key")  # a chosen one would stay in the environment
    result = CliRunner().invoke(app, ["serve", "echo", "--port", "0", *options], standalone_mode=False)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
