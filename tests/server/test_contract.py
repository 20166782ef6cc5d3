"""What a server tells of its types, in its hello and when it is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from openenv.client import EnvClient
from openenv.environment import Environment
from openenv.protocol.contract import Contract
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State

from .probe import app_of
from .talk import error_of


class Grid(Observation):
    cells: np.ndarray


class GridEnvironment(Environment[Action, Grid, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Grid:
        return Grid(cells=np.zeros((2, 2)))

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Grid:
        return Grid(cells=np.ones((2, 2)))

    @property
    def state(self) -> State:
        return State()


class GridEnv(EnvClient[Action, Grid, State]):
    pass


def test_the_hello_has_the_hashes_of_what_schema_answers(anywhere: Any) -> None:
    hashes = anywhere.hello["schema"]
    reply = anywhere.ask("schema")
    assert (reply["ok"], set(reply["schemas"])) == (True, {"action", "observation", "state"})
    assert Contract(reply["schemas"]).hashes == hashes


def test_schema_is_no_call_of_a_batch(talk: Any) -> None:
    talk.open("one")
    reply = talk.ask("batch", calls=[{"op": "schema"}, {"op": "state", "session": "one"}])
    errors = [
        result.get("error", {}).get("error") for result in sorted(reply["results"], key=lambda each: each["call"])
    ]
    assert errors == ["UnknownMessage", None]


def test_schema_takes_no_fields(talk: Any) -> None:
    assert error_of(talk.ask("schema", session="one"))["error"] == "InvalidAction"
    talk.open("one")
    talk.assert_lives("one")


def test_the_contract_is_what_get_schema_says() -> None:
    app = app_of()
    with TestClient(app) as client:
        assert Contract(client.get("/schema").json()).hashes == app.state.openenv.contract.hashes


def test_it_is_found_out_once() -> None:
    server = app_of().state.openenv
    assert server.contract is server.contract
    assert server.contract.schemas is server.contract.schemas


@pytest.mark.filterwarnings("error")
async def test_types_without_a_schema_are_served_and_compared_as_far_as_they_have_one() -> None:
    app = create_app(GridEnvironment, Action, Grid, settings=ServerSettings())
    with TestClient(app) as client:
        schema = client.get("/schema").json()["observation"]
    assert set(schema["properties"]) == {"done", "reward", "metadata", "cells"}
    client_of_it = GridEnv(app=app, strict=True)
    assert await client_of_it.connect() is client_of_it
    await client_of_it.close()
