"""A seed that an environment does not take is never dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from openenv.types import State

from .probe import AsyncProbe, ProbeEnvironment, ProbeObservation, app_of
from .talk import few_lines
from .wires import WIRES


class Unseeded(ProbeEnvironment):
    def reset(self, episode_id: str | None = None) -> ProbeObservation:
        return ProbeObservation(value=0, metadata={"own": 1})


class Bare:
    """No `Environment` at all."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self) -> dict[str, Any]:
        return {"value": 0}

    def step(self, action: Any) -> dict[str, Any]:
        return {"value": 1}

    @property
    def state(self) -> State:
        return State()


@few_lines
@pytest.mark.parametrize(("environment", "own"), [(Unseeded, {"own": 1}), (Bare, {})])
def test_v2_says_so_beside_the_observation(line, environment, own):
    with line(environment) as open_talk:
        talk = open_talk()
        talk.open("one")
        reply = talk.ask(**talk.call("reset", "one", kwargs={"seed": 3}))
        assert reply["metadata"] == {**own, "seedable": False}
        assert "seedable" not in reply["observation"].get("metadata", {})
        reply = talk.ask(**talk.call("reset", "one", kwargs={"episode_id": "x"}))
        assert "seedable" not in reply.get("metadata", {})


@few_lines
def test_v2_says_nothing_where_the_seed_is_taken(line):
    with line(AsyncProbe) as open_talk:
        talk = open_talk()
        talk.open("one")
        assert "metadata" not in talk.ask(**talk.call("reset", "one", kwargs={"seed": 3}))


@pytest.mark.parametrize("environment", [Unseeded, Bare])
def test_v1_says_so_at_the_top_of_its_reply(environment):
    with WIRES["fast"](app_of(environment)) as open_wire:
        wire = open_wire()
        data = wire.ask({"type": "reset", "data": {"seed": 3}})["data"]
        assert data["metadata"]["seedable"] is False
        assert "seedable" not in data["observation"].get("metadata", {})
        assert "seedable" not in wire.ask({"type": "reset"})["data"].get("metadata", {})
        wire.close()


def test_http_and_the_metadata_say_so():
    with TestClient(app_of(Unseeded)) as client:
        assert client.post("/reset", json={"seed": 3}).json()["metadata"] == {"own": 1, "seedable": False}
        assert client.post("/reset").json()["metadata"] == {"own": 1}
        assert client.get("/metadata").json()["seedable"] is False
    with TestClient(app_of(ProbeEnvironment)) as client:
        assert "seedable" not in client.get("/metadata").json()
