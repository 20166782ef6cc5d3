"""The page that `build_gradio_app` makes, with Gradio itself: from this Python, or from the released package's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from openenv.errors import MissingExtra
from openenv.server.page.gradio import (
    build_gradio_app,
    get_gradio_display_title,
    get_quick_start_markdown,
    load_gradio,
)
from openenv.types import EnvironmentMetadata

from ..chaos.served import PEER_PYTHON

LIMIT_S = 120.0
CHESS = EnvironmentMetadata(name="chess", description="A game")

PROGRAM = """
import asyncio, json, sys, warnings
warnings.simplefilter("ignore")
sys.path += sys.argv[1:]
from typing import Literal
import gradio
from fastapi.testclient import TestClient
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.gradio_theme import OPENENV_GRADIO_CSS, OPENENV_GRADIO_THEME
from openenv.core.env_server.gradio_ui import build_gradio_app

class Move(Action):
    by: int
    far: float | None = None
    manner: Literal["walk", "run"] = "walk"
    loud: bool = False

class Place(Observation):
    at: int = 0
    manner: str = ""

class Walk(Environment):
    at = 0
    def reset(self):
        self.at = 0
        return Place()
    def step(self, action):
        self.at += action.by
        return Place(at=self.at, manner=action.manner)
    @property
    def state(self):
        return State(step_count=self.at)

pages = []
def build(*arguments):
    pages.append(build_gradio_app(*arguments))
    return gradio.TabbedInterface([pages[0]], ["Form"])

app = create_app(Walk, Move, Place, "walk", gradio_builder=build)
found = {"kinds": [type(each).__name__ for each in pages[0].blocks.values()], "title": pages[0].title}
calls = {each.name: each.fn for each in pages[0].fns.values()}
with TestClient(app) as client:
    found["page"] = client.get("/web/custom/").status_code
    values = {"step": (1, "", "run", True)}
    for name in ("step", "reset", "step", "state"):
        async def call():
            try:
                return await calls[name](*values.get(name, ()))
            except gradio.Error as error:
                return str(error)
        found.setdefault("calls", []).append(client.portal.call(call))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    found = [sys.executable, "-c", PROGRAM]
    try:
        import gradio  # noqa: F401
    except ModuleNotFoundError:
        if not PEER_PYTHON.exists():
            pytest.skip("Gradio is not installed, and neither is the released package that brings it")
        found += [str(each) for each in Path(PEER_PYTHON).parents[1].glob("lib/python*/site-packages")]
    ended = subprocess.run(found, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    told: dict[str, Any] = json.loads(ended.stdout.strip().rpartition("\n")[2])
    return told


@pytest.mark.slow
def test_the_page_is_served_beside_others(page):
    assert page["page"] == 200
    assert page["title"] == "OpenEnv: walk"


@pytest.mark.slow
def test_the_form_has_a_component_for_each_field(page):
    assert [kind for kind in page["kinds"] if kind in {"Number", "Textbox", "Dropdown", "Checkbox"}] == [
        "Number",
        "Textbox",
        "Dropdown",
        "Checkbox",
    ]


@pytest.mark.slow
def test_its_buttons_play_an_episode(page):
    early, reset, step, state = page["calls"]
    assert "reset first" in early
    assert reset["observation"]["at"] == 0
    assert (step["observation"]["at"], step["observation"]["manner"]) == (1, "run")
    assert state["step_count"] == 1


def test_without_gradio_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "openenv.core.env_server.gradio_theme", raising=False)
    with pytest.raises(MissingExtra, match="pip install gradio"):
        load_gradio()
    with pytest.raises(MissingExtra, match="pip install gradio"):
        build_gradio_app(None, [], CHESS, False)
    with pytest.raises(ImportError, match="pip install gradio"):
        from openenv.core.env_server.gradio_theme import OPENENV_GRADIO_THEME  # noqa: F401
    with pytest.raises(ImportError, match="pip install gradio"):
        from openenv.core.env_server.web_interface import OPENENV_GRADIO_CSS  # noqa: F401


def test_titles():
    assert get_gradio_display_title(CHESS) == "OpenEnv: chess"
    assert get_gradio_display_title(None, "else") == "OpenEnv: else"


def test_the_example_names_the_fields_that_an_action_must_have():
    class Move(BaseModel):
        source: str
        target: str
        promotion: str = "queen"

    told = get_quick_start_markdown(CHESS, Move, Move)
    assert 'env.step({"source": ..., "target": ...})' in told
    assert "chess" in told
    assert "this environment" in get_quick_start_markdown(None, int, int)
