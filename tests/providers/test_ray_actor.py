"""What runs on a node of a Ray cluster, here without Ray: it is a plain class."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.providers.ray_actor import ActorPlan, ServerActor
from openenv.providers.spec import LaunchSpec
from openenv.testing.misbehaving import LAST_WORDS

from ..server.wires import eventually

pytestmark = pytest.mark.real
SOON_S = 20.0
Start = Callable[..., ServerActor]


def misbehaving(behaviour: str) -> list[str]:
    return [sys.executable, "-m", "openenv.testing.misbehaving", behaviour]


def plan(
    restarts: int = 0, variables: dict[str, str] | None = None, timeout_s: float = SOON_S, **spec: Any
) -> ActorPlan:
    return ActorPlan(LaunchSpec(**spec), None, {"OPENENV_API_KEYS": "none", **(variables or {})}, timeout_s, restarts)


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes actors, and ends them."""
    made: list[ServerActor] = []

    def start(plan: ActorPlan) -> ServerActor:
        made.append(ServerActor(plan, "127.0.0.1"))
        return made[-1]

    yield start
    for actor in made:
        actor.stop()


def pid_of(actor: ServerActor) -> int:
    assert actor._process is not None
    return actor._process.pid


def test_a_server_says_where_it_is(start: Start) -> None:
    report = start(plan(target="echo")).report(SOON_S)
    assert report.url is not None
    assert report.url.startswith("http://127.0.0.1:")
    assert report.end is None


def test_a_command_is_there_when_it_listens(start: Start) -> None:
    report = start(plan(command=misbehaving("hang"))).report(SOON_S)
    assert report.url is not None


def test_one_that_dies_is_started_again_at_the_same_address(start: Start) -> None:
    actor = start(plan(1, target="echo"))
    first = actor.report(SOON_S)
    os.kill(pid_of(actor), signal.SIGKILL)
    eventually(lambda: actor.report() != first)
    assert actor.report().end is None
    assert actor.report(SOON_S).url == first.url


def test_one_that_dies_too_often_tells_how(start: Start) -> None:
    actor = start(plan(0, target="echo"))
    actor.report(SOON_S)
    os.kill(pid_of(actor), signal.SIGKILL)
    eventually(lambda: actor.report().end is not None)
    report = actor.report()
    assert report.url is None
    assert report.end == "was killed by SIGKILL"
    assert "echo on http://" in report.log


def test_one_that_never_listened_is_not_started_again(start: Start) -> None:
    secret = "a-very-secret-word"
    report = start(plan(5, {"SOME_TOKEN": secret}, command=misbehaving("crash"))).report(SOON_S)
    assert report.end == "ended with exit code 3"
    assert LAST_WORDS in report.log
    assert secret not in report.log


def test_one_that_does_not_listen_in_time_is_ended(start: Start) -> None:
    actor = start(plan(5, timeout_s=0.2, command=[sys.executable, "-c", "import time; time.sleep(99)"]))
    assert actor.report(SOON_S).end == "did not listen within 0.2 s"
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(actor), 0)


def test_what_cannot_be_started_is_told(start: Start) -> None:
    assert "/no/such/program: No such file" in start(plan(5, command=["/no/such/program"])).report(SOON_S).log


def test_no_uv_project_is_told(start: Start, tmp_path: Path) -> None:
    end = start(plan(project=tmp_path)).report(SOON_S).end
    assert end is not None
    assert "is not a project" in end


def test_stopped_is_stopped_whenever_that_comes(start: Start) -> None:
    actor = start(plan(5, target="echo"))
    actor.stop()
    actor.stop()
    assert actor.report(SOON_S).end == "was stopped"
    if actor._process is not None:
        assert actor._process.end is not None


def test_the_token_of_the_cluster_is_not_for_environments(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the-token-of-the-cluster")
    program = "import os, sys; sys.exit('RAY_AUTH_TOKEN' in os.environ)"
    assert start(plan(command=[sys.executable, "-c", program])).report(SOON_S).end == "ended with exit code 0"


def test_a_plan_travels_and_does_not_show_its_variables() -> None:
    made = plan(variables={"SOME_TOKEN": "a-very-secret-word"}, target="echo")
    assert "secret" not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made
