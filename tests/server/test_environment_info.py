"""What the page is told of an environment at its start."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from openenv.mcp.environment import MCPEnvironment
from openenv.server import create_app, metadata
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State

from .stage import InlineStage, Stage, TellingStage, app_of


def told_by(environment: Any, **settings: Any) -> Any:
    with TestClient(app_of(environment, **settings)) as client:
        answer = client.get("/web/metadata")
        assert answer.status_code == 200, answer.text
        assert client.app.state.openenv.active_sessions == 0
        return answer.json()


def test_all_that_the_page_needs():
    told = told_by(Stage)
    assert (told["name"], told["seedable"], told["tools"]) == ("Stage", True, None)
    assert (told["panel"], told["custom"]) == (False, False)
    assert told["description"].startswith("Says what it is told")
    assert told["notes"] == []
    assert set(told["schemas"]) == {"action", "observation", "state", "reset_observation"}
    assert told["schemas"]["action"]["properties"]["times"] == {
        "default": 1,
        "maximum": 5,
        "minimum": 1,
        "title": "Times",
        "type": "integer",
    }
    assert told["schema_hash"]
    assert set(told["schema_hashes"]) == {"action", "observation", "state"}
    server = told["server"]
    assert (server["environment"], server["mode"], server["max_sessions"]) == ("stage", "simulation", 4)
    assert server["idle_timeout_s"] == 3600.0


def test_the_form_of_a_reset_comes_from_its_signature():
    schema = told_by(Stage)["reset_schema"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["seed", "episode_id", "level", "mode"]
    assert schema["properties"]["level"] == {"default": 3, "title": "Level", "type": "integer"}
    assert schema["properties"]["mode"]["enum"] == ["easy", "hard"]
    assert schema["properties"]["seed"]["minimum"] == 0
    assert schema["properties"]["episode_id"]["maxLength"] == 255
    assert "required" not in schema


class Odd(Stage):
    """Arguments that no form foresees."""

    def reset(
        self,
        needed: int,
        json: "list[NoSuchType]" = (),  # noqa: F821, UP037
        _private: Any = None,
        model_config: object = object(),
        callback: Any = lambda: None,
        *positions: int,
        **further: Any,
    ) -> Observation:
        return Observation()


def test_whatever_the_arguments_are_there_is_a_form():
    told = told_by(Odd)
    schema = told["reset_schema"]
    assert list(schema["properties"]) == ["needed", "json", "_private", "model_config", "callback"]
    assert schema["required"] == ["needed"]
    assert schema["additionalProperties"] is True
    assert told["seedable"] is True


class Half(Stage):
    """Some of its types are known, and some names have their usual meaning."""

    def reset(self, seed=None, other: "NoSuchType" = None, level: "int" = 2) -> Observation:  # noqa
        return Observation()


def test_types_that_can_be_read_are_and_a_seed_is_a_number():
    properties = told_by(Half)["reset_schema"]["properties"]
    assert properties["level"]["type"] == "integer"
    assert properties["seed"]["anyOf"][0] == {"type": "integer"}
    assert "type" not in properties["other"]


class Unseeded(Stage):
    def reset(self) -> Observation:
        return Observation()


def test_an_environment_that_takes_no_seed_says_so():
    told = told_by(Unseeded)
    assert told["seedable"] is False
    assert told["reset_schema"] == {
        "type": "object",
        "title": "Reset",
        "properties": {},
        "additionalProperties": False,
    }


def test_an_instance_is_asked_once_if_it_knows_more():
    TellingStage.made = 0
    with TestClient(app_of(TellingStage)) as client:
        for _ in range(3):
            told = client.get("/web/metadata").json()
            assert (told["name"], told["author"]) == ("Told", "The stage hands")
            assert told["reset_schema"]["properties"]["level"]["default"] == 3
    assert TellingStage.made == 1


def test_without_room_for_an_instance_the_class_is_told_of_and_asked_again_later():
    with TestClient(app_of(TellingStage, max_sessions=1)) as client:
        name = client.post("/sessions").json()["session_id"]
        told = client.get("/web/metadata").json()
        assert told["name"] == "TellingStage"
        assert "could not be queried" in told["notes"][0]
        assert told["reset_schema"]["properties"]["level"]["default"] == 3
        client.delete(f"/sessions/{name}")
        assert client.get("/web/metadata").json()["name"] == "Told"


class Broken(TellingStage):
    def __init__(self) -> None:
        raise OSError("no such stage")


class Silent(TellingStage):
    def get_metadata(self) -> Any:
        Stage.gate.wait(20)
        return 7


@pytest.mark.parametrize(("environment", "why"), [(Broken, "no such stage"), (Silent, "no answer within 0.05 s")])
def test_an_environment_that_cannot_be_asked_is_told_of_with_a_note(environment, why, monkeypatch):
    monkeypatch.setattr(metadata, "ASKING_S", 0.05 if environment is Silent else 10.0)
    Stage.gate.clear()
    with TestClient(app_of(environment)) as client:
        answer = client.get("/web/metadata")
        Stage.gate.set()
        assert answer.status_code == 200
        assert answer.json()["name"] == environment.__name__
        assert why in answer.json()["notes"][0]
        assert client.get("/web/panel").status_code == 404


def make_stage():
    return InlineStage()


TOO_DEEP = '{"metadata": {}, "reset_schema": {"a": ' + "[" * 5000 + "]" * 5000 + "}}"


@pytest.mark.parametrize("said", ["no json", '{"metadata": {"name": 7}}', TOO_DEEP])
def test_an_introduction_that_is_none_is_told_as_a_note(monkeypatch, said):
    monkeypatch.setattr(metadata, "instance_info", lambda environment, _: said)
    with TestClient(app_of(TellingStage)) as client:
        told = client.get("/web/metadata").json()
        assert "its metadata cannot be read" in told["notes"][0]


@pytest.mark.parametrize("tools", [7, [7], [{"description": "nameless"}]])
def test_tools_that_are_none_are_told_as_a_note(monkeypatch, tools):
    monkeypatch.setattr(metadata, "answer", lambda environment, ask: {"result": {"tools": tools}})
    with TestClient(app_of(lambda: TellingStage())) as client:
        told = client.get("/web/metadata").json()
        assert "its list of tools cannot be read" in told["notes"][0]


def test_what_a_function_makes_is_asked_itself():
    told = told_by(make_stage, max_sessions=4)
    assert told["name"] == "InlineStage"
    assert told["reset_schema"]["properties"]["mode"]["enum"] == ["easy", "hard"]
    assert told["tools"] is None


def test_tools_are_listed_under_the_names_of_the_rest():
    fastmcp = pytest.importorskip("fastmcp")

    class Tooled(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server = fastmcp.FastMCP("tooled")

            @server.tool
            def add(left: int, right: int = 2) -> int:
                """Adds."""
                return left + right

            super().__init__(server)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
            return Observation()

        def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            return Observation()

        @property
        def state(self) -> State:
            return State()

    app = create_app(Tooled, Action, Observation, "tooled", 2, settings=ServerSettings.read({}))
    with TestClient(app) as client:
        (tool,) = client.get("/web/metadata").json()["tools"]
        assert (tool["name"], tool["description"]) == ("add", "Adds.")
        assert tool["input_schema"]["required"] == ["left"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose environment is a module in its folder `server`."""
    server = tmp_path / "server"
    server.mkdir()
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\n")
    (tmp_path / "README.md").write_text("# A stage of one's own")
    source = server / "own_stage.py"
    source.write_text("from tests.server.stage import Stage\n\n\nclass OwnStage(Stage):\n    pass\n")
    module = types.ModuleType("own_stage")
    module.__file__ = str(source)
    exec(compile(source.read_text(), str(source), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "own_stage", module)
    return tmp_path


@pytest.mark.parametrize("place", ["server", "."])
def test_an_authors_panel_is_one_file(project, place):
    (project / place / "panel.html").write_text("<script>panel()</script>é\n", encoding="utf-8")
    with TestClient(app_of(sys.modules["own_stage"].OwnStage)) as client:
        told = client.get("/web/metadata").json()
        assert (told["panel"], told["readme_content"]) == (True, "# A stage of one's own")
        answer = client.get("/web/panel")
        assert answer.text == "<script>panel()</script>é\n"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        # Whoever opens it by its address sees a page without scripts, which is none of this server's.
        assert answer.headers["content-security-policy"].startswith("sandbox;")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_without_a_panel_it_is_said_how_to_have_one(project):
    with TestClient(app_of(sys.modules["own_stage"].OwnStage)) as client:
        assert client.get("/web/metadata").json()["panel"] is False
        answer = client.get("/web/panel")
        assert answer.status_code == 404
        assert "panel.html" in answer.json()["message"]


def test_a_panel_that_is_no_page_is_none(project):
    (project / "panel.html").write_bytes(b"x" * (5 * 1024 * 1024))
    assert told_by(sys.modules["own_stage"].OwnStage)["panel"] is False
