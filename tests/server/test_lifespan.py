"""What happens when the app of a server starts and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from openenv.server import HTTPEnvServer, create_app
from openenv.settings import ServerSettings

from .probe import InlineProbe, ProbeAction, ProbeObservation

SETTINGS = ServerSettings.read({"OPENENV_API_KEYS": "none"})


class Noted(InlineProbe):
    """Says when it was closed."""

    notes: list[str] = []

    def close(self):
        self.notes.append("closed")


@pytest.fixture
def notes() -> list[str]:
    Noted.notes = []
    return Noted.notes


def server() -> HTTPEnvServer:
    return HTTPEnvServer(Noted, ProbeAction, ProbeObservation, settings=SETTINGS)


def open_session(client: TestClient) -> None:
    assert client.post("/sessions").status_code in {200, 201}


def test_sessions_are_closed_with_the_app(notes):
    with TestClient(create_app(Noted, ProbeAction, ProbeObservation, settings=SETTINGS)) as client:
        open_session(client)
        assert notes == []
    assert notes == ["closed"]


def test_sessions_are_closed_with_an_app_of_ones_own(notes):
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        notes.append("begun")
        yield {"own": "state"}
        notes.append("ended")

    app = FastAPI(lifespan=lifespan)
    server().register_routes(app)

    @app.get("/own")
    def own(request: Request) -> str:
        return str(request.state.own)

    with TestClient(app) as client:
        open_session(client)
        assert client.get("/own").json() == "state"
    assert notes == ["begun", "ended", "closed"]


def test_handlers_of_the_older_kind_run_too(notes):
    app = FastAPI()
    server().register_routes(app)
    app.router.on_startup.append(lambda: notes.append("begun"))
    app.router.on_shutdown.append(lambda: notes.append("ended"))
    with TestClient(app) as client:
        open_session(client)
    assert notes == ["begun", "ended", "closed"]


def test_sessions_are_closed_though_the_owners_end_fails(notes):
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        raise ValueError("no end")

    app = FastAPI(lifespan=lifespan)
    server().register_routes(app)
    with pytest.raises(ValueError, match="no end"):
        with TestClient(app) as client:
            open_session(client)
    assert notes == ["closed"]


def test_an_app_starts_again(notes):
    app = create_app(Noted, ProbeAction, ProbeObservation, settings=SETTINGS)
    for _ in range(2):
        with TestClient(app) as client:
            open_session(client)
    assert notes == ["closed", "closed"]


def test_routes_that_another_app_includes_keep_their_server_its_errors_and_its_guard():
    keys = ServerSettings.read({"OPENENV_API_KEYS": "control:0123456789abcdef"})
    outer = FastAPI()
    outer.include_router(create_app(Noted, ProbeAction, ProbeObservation, settings=keys).router)
    key = {"authorization": "Bearer 0123456789abcdef"}
    with TestClient(outer) as client:
        assert client.post("/reset", headers=key).status_code == 200
        unknown = client.post("/reset", headers={**key, "x-session-id": "nobody"})
        assert (unknown.status_code, unknown.json()["error"]) == (404, "UnknownSession")
        assert client.post("/reset").status_code == 401
        with client.websocket_connect("/ws", headers=key) as socket:
            socket.send_json({"type": "reset"})
            assert socket.receive_json()["type"] == "observation"
