from __future__ import annotations

import threading

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv.messages import HealthResponse
from openenv.server.app import GetEndpointConfig, register_get_endpoints


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    register_get_endpoints(
        app,
        [
            GetEndpointConfig("/well", HealthResponse, HealthResponse, "About", "Well?", "Whether it is well."),
            GetEndpointConfig("/thread", lambda: {"name": threading.current_thread().name}, dict, "About", "S", "D"),
            GetEndpointConfig("/wrong", lambda: {"status": "none such"}, HealthResponse, "About", "S", "D"),
        ],
    )

    @app.get("/loop")
    async def loop() -> dict[str, str]:
        return {"name": threading.current_thread().name}

    return app


def test_each_entry_is_a_route(app):
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/well").json() == {"status": "healthy"}
        assert client.post("/well").status_code == 405
        assert client.get("/wrong").status_code == 500


def test_handlers_run_on_the_event_loop(app):
    with TestClient(app) as client:
        assert client.get("/thread").json() == client.get("/loop").json()


def test_the_document_says_what_the_entry_says(app):
    told = app.openapi()["paths"]["/well"]["get"]
    assert (told["tags"], told["summary"], told["description"]) == (["About"], "Well?", "Whether it is well.")
