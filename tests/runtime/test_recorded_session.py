"""Sessions whose calls are recorded: wherever their environments run, and however their calls end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from openenv.errors import SessionLost, StepFailed
from openenv.recording import Subject, Tap
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.process import ProcessPool
from openenv.runtime.session import Session
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State

from ..asynchronous import Gate, open_session, outcome, until
from ..environments import AsyncPlain, Gated, InlinePlain, MixedPlain, Plain
from ..recording.lines import Page

pytestmark = pytest.mark.usefixtures("no_threads_left")

SUBJECT = Subject("plain", None, None)


class Failing(Plain):
    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise LookupError("no such move")


class Hanging(AsyncPlain):
    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        await asyncio.Event().wait()
        raise AssertionError


def recorded(
    factory: Callable[[], Any], page: Page, chosen: Callable[[str], bool] = lambda _: True, **limits: Any
) -> SessionManager:
    manager = SessionManager(factory, Limits(**{"max_sessions": 4, **limits}))
    manager.tap_factory = lambda name: Tap(page, SUBJECT.tail, name) if chosen(name) else None
    return manager


@pytest.mark.parametrize("cls", [InlinePlain, AsyncPlain, Plain, MixedPlain])
@pytest.mark.parametrize("limit", [None, 1])
async def test_an_episode(cls: type[Plain], limit: int | None) -> None:
    page = Page()
    manager = recorded(cls, page, max_executing=limit)
    session, _ = await open_session(manager)
    await outcome(partial(session.reset, {"seed": 3, "episode_id": "e", "level": "hard"}))
    await outcome(partial(session.step, Action()))
    await outcome(session.read_state)
    await outcome(partial(session.step_with, Action(), {"timeout_s": 5.0}))
    await outcome(partial(session.reset, {}))
    await manager.aclose()
    found = [(line["episode_id"], line["step"], line["reward"], line["error"]) for line in page.lines]
    second = f"{session.id}-2"
    assert found == [("e", 0, None, None), ("e", 1, 1.0, None), ("e", 2, 2.0, None), (second, 0, None, None)]
    assert (page.lines[0]["seed"], page.lines[0]["arguments"]) == (3, {"level": "hard"})
    assert {line["session_id"] for line in page.lines} == {session.id}


async def test_a_session_that_is_not_chosen_is_a_session_like_all_others() -> None:
    page = Page()
    manager = recorded(InlinePlain, page, chosen=lambda _: False)
    session, _ = await open_session(manager)
    await outcome(partial(session.reset, {}))
    assert type(session) is Session
    assert page.lines == []
    await manager.aclose()


async def test_what_an_environment_raises_is_the_error_that_its_client_gets() -> None:
    page = Page()
    manager = recorded(Failing, page)
    session, _ = await open_session(manager)
    _, error = await outcome(partial(session.step, Action()))
    assert type(error) is StepFailed
    assert page.lines[0]["error"] == f"StepFailed: {error.message}"
    await manager.aclose()


async def test_a_call_whose_time_is_over_is_recorded_as_that() -> None:
    page = Page()
    manager = recorded(Hanging, page)
    session, _ = await open_session(manager)
    call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    await asyncio.sleep(0)
    assert session.stop()
    await call
    (line,) = page.lines
    assert line["error"].startswith("StepTimeout: ")
    await outcome(partial(session.reset, {}))
    await manager.aclose()
    assert [line["step"] for line in page.lines] == [1, 0]


async def test_a_thread_that_cannot_be_stopped_leaves_the_line_of_its_timeout_alone() -> None:
    page, gate = Page(), Gate()
    manager = recorded(partial(Gated, stepping=gate), page)
    session, _ = await open_session(manager)
    call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    await gate.reached()
    assert not session.stop()
    gate.open()
    await call
    (line,) = page.lines
    assert (line["error"].partition(":")[0], line["reward"]) == ("StepTimeout", None)
    await manager.aclose()


async def test_a_call_that_its_client_cancelled_is_recorded_as_that() -> None:
    page = Page()
    manager = recorded(Hanging, page)
    session, _ = await open_session(manager)
    call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    await asyncio.sleep(0)
    assert session.cancel()
    await call
    assert page.lines[0]["error"].startswith("Cancelled: ")
    await manager.aclose()


async def test_a_session_that_is_lost_during_a_call_says_why() -> None:
    page, gate = Page(), Gate()
    manager = recorded(partial(Gated, stepping=gate), page)
    session, _ = await open_session(manager)
    call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    await gate.reached()
    session.end(SessionLost("it was idle"))
    gate.open()
    await call
    assert [line["error"] for line in page.lines] == ["SessionLost: it was idle"]
    await manager.aclose()


async def test_a_session_that_is_closed_during_a_call_says_that() -> None:
    page, gate = Page(), Gate()
    manager = recorded(partial(Gated, stepping=gate), page)
    session, _ = await open_session(manager)
    call = asyncio.ensure_future(outcome(partial(session.step, Action())))
    await gate.reached()
    session.close()
    gate.open()
    await call
    assert [line["error"].partition(":")[0] for line in page.lines] == ["SessionLost"]
    await manager.aclose()


class Moody(InlinePlain):
    """Changes what it has returned whenever it is asked for anything."""

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self.seen = Observation(reward=1.0, metadata={"as": "sent"})
        return self.seen

    @property
    def state(self) -> State:
        self.spoil()
        return State()

    def spoil(self) -> None:
        self.seen.reward, self.seen.metadata = 9.0, {"as": "changed"}


@pytest.mark.parametrize("what", ["state", "call", "load"])
async def test_a_step_is_written_down_before_its_session_does_anything_else(what: str) -> None:
    page = Page()
    manager = recorded(Moody, page)
    (session, _), (other, _) = await open_session(manager), await open_session(manager)
    others = {"state": session.read_state, "call": partial(session.call, lambda env, _: env.spoil(), None)}
    seed, _ = await outcome(other.save)
    others["load"] = partial(session.load, seed, other)

    def ended(result: Any, error: BaseException | None) -> None:
        observation = result
        others[what](lambda result, error: None)
        if what == "load":
            observation.reward, observation.metadata = 9.0, {}

    session.step(Action(), ended)
    await manager.aclose()
    if what != "load":
        seed.discard()
    (line,) = page.lines
    assert (line["reward"], line["observation"]["metadata"]) == (1.0, {"as": "sent"})


async def test_calls_of_a_session_that_takes_none_are_not_recorded() -> None:
    page = Page()
    manager = recorded(InlinePlain, page)
    session, _ = await open_session(manager)
    session.close()
    for call in (partial(session.reset, {}), partial(session.step, Action())):
        _, error = await outcome(call)
        assert type(error) is SessionLost
    assert page.lines == []
    await manager.aclose()


async def test_a_step_that_is_asked_for_while_the_last_one_ends_has_a_line_of_its_own() -> None:
    page = Page()
    manager = recorded(InlinePlain, page)
    session, _ = await open_session(manager)
    rewards: list[float] = []

    def ended(result: Any, error: BaseException | None) -> None:
        rewards.append(result.reward)
        if len(rewards) < 3:
            session.step(Action(), ended)

    session.step(Action(), ended)
    assert rewards == [1.0, 2.0, 3.0]
    await manager.aclose()
    assert [(line["step"], line["reward"]) for line in page.lines] == [(1, 1.0), (2, 2.0), (3, 3.0)]


async def test_a_step_is_written_down_when_its_reply_is_on_its_way() -> None:
    page, lines = Page(), []
    manager = recorded(InlinePlain, page)
    session, _ = await open_session(manager)
    session.step(Action(), lambda result, error: lines.append(len(page.texts)))
    assert (lines, page.texts) == ([0], [])
    await until(lambda: len(page.texts) == 1)
    await manager.aclose()


async def test_many_that_end_together_are_all_written_down() -> None:
    page = Page()
    manager = recorded(InlinePlain, page, max_sessions=50)
    sessions = [(await open_session(manager))[0] for _ in range(50)]
    for session in sessions:
        session.step(Action(), lambda result, error: None)
    await until(lambda: len(page.texts) == 50)
    assert {line["session_id"] for line in page.lines} == {session.id for session in sessions}
    await manager.aclose()


async def test_what_an_asynchronous_environment_changes_later_is_recorded_as_it_was() -> None:
    class Restless(AsyncPlain):
        async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            seen = Observation(metadata={"as": "sent"})
            asyncio.get_running_loop().call_soon(seen.metadata.update, {"as": "changed"})
            return seen

    page = Page()
    manager = recorded(Restless, page)
    session, _ = await open_session(manager)
    await outcome(partial(session.step, Action()))
    await manager.aclose()
    assert page.lines[0]["observation"]["metadata"] == {"as": "sent"}


@pytest.mark.real
async def test_sessions_with_processes_of_their_own() -> None:
    page = Page()
    pool = ProcessPool(Failing, ServerSettings(process_pool=0))
    manager = SessionManager(Failing, Limits(max_sessions=2), pool)
    manager.tap_factory = lambda name: Tap(page, SUBJECT.tail, name)
    session, _ = await open_session(manager)
    await outcome(partial(session.reset, {"seed": 5}))
    await outcome(partial(session.step, Action()))
    await manager.aclose()
    first, second = page.lines
    assert (first["seed"], first["observation"]["metadata"]["seed"], first["error"]) == (5, 5, None)
    assert "Error: no such move (tests/runtime/test_recorded_session.py:" in second["error"]
