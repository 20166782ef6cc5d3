"""Forks and restores while connections are cut, sources go on, and limits are met."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openenv.server import create_app
from openenv.server.auth import Principal, Scope
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..asynchronous import until
from ..environments import InlinePlain
from .forkable import AsyncWalk, InlineWalk, Walk
from .probe import app_of
from .scripted import TOKEN, End

SECRET = "a-secret-of-the-other-one"


def begin(end: End, name: str, token: str = TOKEN) -> None:
    end.tell("open", session=name, token=token)
    end.tell("reset", session=name, seq=1, kwargs={"seed": 3})


def cut_off(environment: Any, **settings: Any) -> tuple[Any, End, End]:
    """Two connections: of session one, and of session two, which runs a step that does not end by itself."""
    Walk.forget()
    app = app_of(environment, **settings)
    mine, other = End(app.state.openenv), End(app.state.openenv)
    begin(mine, "one")
    begin(other, "two", SECRET)
    return app, mine, other


@pytest.mark.parametrize("environment", [Walk, InlineWalk, AsyncWalk])
async def test_a_source_without_its_connection_has_its_state_still(environment):
    app, mine, other = cut_off(environment)
    await until(lambda: 2 in other.replies)
    other.cut()
    restoring = mine.tell("restore", session="one", seq=2, source="two", token=SECRET)
    await until(lambda: restoring in mine.replies)
    assert mine.replies[restoring][0].get("ok") is True, mine.replies[restoring]
    back = End(app.state.openenv)
    assert back.now("attach", session="two", token=SECRET)["state"] == "live"
    await app.state.openenv.aclose()


async def test_a_cut_connection_with_restores_waiting_for_its_session_keeps_all_it_has():
    app, mine, other = cut_off(Walk)
    begin(other, "three", SECRET)
    await until(lambda: 4 in other.replies)
    other.step(2, "wait", "two")
    await asyncio.to_thread(Walk.waiting.wait, 20)
    waiting = [mine.tell("restore", session="one", seq=seq, source="two", token=SECRET) for seq in (2, 3)]
    other.cut()
    Walk.gate.set()
    await until(lambda: set(waiting) <= set(mine.replies))
    back = End(app.state.openenv)
    for name in ("two", "three"):
        assert back.now("attach", session=name, token=SECRET)["ok"] is True
    await app.state.openenv.aclose()


async def test_a_restored_session_counts_the_steps_that_its_source_had_then():
    app, mine, _ = cut_off(Walk)
    begin(mine, "two-of-mine")
    await until(lambda: {2, 4} <= set(mine.replies))  # else "one" may ask for the state when the steps are done
    restored = mine.tell("restore", session="one", seq=2, source="two-of-mine")
    last = [mine.step(seq, session="two-of-mine") for seq in range(2, 12)][-1]
    await until(lambda: {restored, last} <= set(mine.replies))
    manager = app.state.openenv.manager
    assert (manager.find("one").steps, manager.find("two-of-mine").steps) == (0, 10)
    await app.state.openenv.aclose()


async def test_forks_work_where_sessions_end_with_their_connection():
    app, mine, _ = cut_off(InlineWalk, resume_window_s=0)
    assert mine.now("fork", session="one", new="fork", token=SECRET)["ok"] is True
    back = End(app.state.openenv)
    assert back.now("attach", session="fork", token=SECRET)["state"] == "live"
    mine.cut()
    assert back.now("state", session="fork")["state"]["step_count"] == 0
    assert app.state.openenv.manager.find("one") is None
    await app.state.openenv.aclose()


async def test_a_fork_counts_for_its_key():
    app = create_app(
        InlinePlain, Action, Observation, max_concurrent_envs=8, settings=ServerSettings(max_sessions_per_key=2)
    )
    mine, other = (End(app.state.openenv, principal=Principal(Scope.CONTROL, key, "here")) for key in (1, 2))
    mine.tell("open", session="one")
    assert mine.now("fork", session="one", new="two")["ok"] is True
    refused = mine.now("fork", session="one", new="three")["error"]
    assert (refused["error"], "max_sessions_per_key" in refused["message"]) == ("ServerFull", True)
    assert other.now("open", session="other")["ok"] is True
    assert mine.now("close", session="two")["ok"] is True
    assert mine.now("fork", session="one", new="three")["ok"] is True
    await app.state.openenv.aclose()
