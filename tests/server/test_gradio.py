"""The page at `/web/custom`. Gradio itself is large: a stand-in with the one function that is used of it."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient

from openenv.server import create_app
from openenv.settings import ServerSettings

from .probe import ProbeAction, ProbeEnvironment, ProbeObservation


class Blocks:
    """A page that shows what its builder was given, and drives the environment."""

    def __init__(self, *arguments: Any):
        self.manager, self.fields, self.metadata, self.is_chat, self.title, self.quick_start = arguments


@pytest.fixture
def gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("gradio")
    library.__spec__ = importlib.machinery.ModuleSpec("gradio", None)

    def mount_gradio_app(app: FastAPI, blocks: Blocks, path: str) -> FastAPI:
        page = FastAPI()

        @page.get("/")
        async def show() -> PlainTextResponse:
            await blocks.manager.reset_environment()
            await blocks.manager.step_environment({"number": "4"})
            return PlainTextResponse(f"{blocks.title}: {blocks.manager.get_state()}")

        app.mount(path, page)
        return app

    library.mount_gradio_app = mount_gradio_app
    monkeypatch.setitem(sys.modules, "gradio", library)


def app_of(builder: Any, mode: str | None = None, **options: Any) -> FastAPI:
    settings = ServerSettings.read({"OPENENV_API_KEYS": "none"}, **options.pop("settings", {}))
    return create_app(
        ProbeEnvironment,
        ProbeAction,
        ProbeObservation,
        "probe",
        None,
        None,
        builder,
        mode=mode,
        settings=settings,
        **options,
    )


def test_the_page_of_a_builder_is_mounted(gradio):
    built: list[Blocks] = []

    def build(*arguments: Any) -> Blocks:
        built.append(Blocks(*arguments))
        return built[0]

    with TestClient(app_of(build, custom_tab_name="Board", title_override="My board")) as client:
        assert "'step_count': 1" in client.get("/web/custom/").text
        assert client.get("/web/custom/").text.startswith("My board")
        assert client.get("/web/metadata").json()["custom"] is True
        assert client.get("/health").status_code == 200
        assert client.app.state.openenv.active_sessions == 1
        with client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "reset"})
            assert socket.receive_json()["type"] == "observation"
    (blocks,) = built
    assert [field["name"] for field in blocks.fields] == ["kind", "number"]
    assert (blocks.metadata.name, blocks.is_chat) == ("probe", False)
    assert "SyncEnvClient" in blocks.quick_start


def test_a_builder_that_fails_is_heard_at_once(gradio):
    def build(*arguments: Any) -> Blocks:
        raise ValueError("no such widget")

    with pytest.raises(ValueError, match="no such widget"):
        app_of(build)


def test_the_page_asks_for_a_key_as_all_do(gradio):
    app = app_of(Blocks, settings={"api_keys": "control:a-key-that-is-long-enough"})
    with TestClient(app) as client:
        assert client.get("/web/custom/").status_code == 401
        assert (
            client.get("/web/custom/", headers={"Authorization": "Bearer a-key-that-is-long-enough"}).status_code
            == 200
        )


@pytest.mark.parametrize(
    "options", [{"mode": "production"}, {"settings": {"mode": "production"}}, {"settings": {"web_interface": False}}]
)
def test_in_production_and_where_it_is_turned_off_there_is_no_page(gradio, options):
    with TestClient(app_of(Blocks, **options)) as client:
        assert client.get("/web/custom/").status_code == 404


def test_without_gradio_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr("openenv.server.page.gradio.find_spec", lambda name: None)
    with TestClient(app_of(Blocks)) as client:
        answer = client.get("/web/custom")
        assert answer.status_code == 501
        assert "pip install gradio" in answer.text
        assert answer.headers["content-type"].startswith("text/html")
        assert client.post("/reset").status_code == 200


def test_without_a_builder_there_is_no_page():
    with TestClient(app_of(None)) as client:
        assert client.get("/web/custom").status_code == 404
