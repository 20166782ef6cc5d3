"""Sessions that requests name: one call at a time, in order, for whoever holds the key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from openenv.environment import Environment
from openenv.errors import (
    Draining,
    FactoryFailed,
    ServerFull,
    SessionLost,
    StepFailed,
    StepTimeout,
    TooManyCalls,
    Unauthorized,
    UnknownSession,
)
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import LastSeen, Session
from openenv.server.auth import ANONYMOUS, Principal, Scope
from openenv.server.shared_sessions import SharedSession, SharedSessions
from openenv.types import Action

from ..asynchronous import Gate, until
from ..environments import AsyncPlain, Gated, InlinePlain, Plain

ALICE, BOB = Principal(Scope.CONTROL, 1, "alice:1"), Principal(Scope.CONTROL, 2, "bob:2")


@asynccontextmanager
async def stays_of(factory: Any = Plain, worker: str | None = None, waiting: int = 8, **limits: Any) -> AsyncIterator:
    manager = SessionManager(factory, Limits(**{"max_sessions": 4, **limits}))
    try:
        yield SharedSessions(manager, lambda: worker, waiting)
    finally:
        await manager.aclose()
        assert manager.active == 0


def reset(session: Session, done: Any) -> None:
    session.reset({}, done)


def step(session: Session, done: Any) -> None:
    session.step(Action(), done)


async def reward(shared: SharedSession, timeout_s: float | None = None) -> Any:
    return (await shared.call(step, timeout_s)).reward


@pytest.mark.parametrize("environment", [Plain, InlinePlain, AsyncPlain])
async def test_calls_of_one_session_go_on_where_the_last_one_ended(environment):
    async with stays_of(environment) as shared_sessions:
        one, other = await shared_sessions.open(ANONYMOUS), await shared_sessions.open(ANONYMOUS)
        await one.call(reset)
        assert [await reward(one) for _ in range(3)] == [1.0, 2.0, 3.0]
        assert await reward(other) == 1.0
        assert shared_sessions.find(one.id, ANONYMOUS) is one


async def test_calls_are_done_one_at_a_time_in_order():
    gate = Gate()
    async with stays_of(partial(Gated, stepping=gate)) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        answers: list[Any] = []

        async def ask(number: int) -> None:
            answers.append((number, await reward(shared)))

        tasks = [asyncio.create_task(ask(number)) for number in range(3)]
        await gate.reached()
        assert answers == []
        gate.open()
        await asyncio.gather(*tasks)
        assert answers == [(0, 1.0), (1, 2.0), (2, 3.0)]


async def test_an_observation_that_the_next_step_changes_is_read_before_that_step():
    class Reusing(Plain):
        execution = "inline"

        def __init__(self) -> None:
            super().__init__()
            self.page = {"count": 0}

        def step(self, action, timeout_s=None, **kwargs):
            self.page["count"] += 1
            return self.page

    async with stays_of(Reusing) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        held: list[Any] = []
        first = shared.submit(lambda session, done: held.append(done), lambda *_: None)
        calls = [asyncio.create_task(shared.call(step, None, lambda page: page["count"])) for _ in range(3)]
        await until(lambda: len(shared._waiting) == 3)
        held[0](None, None)
        assert await asyncio.gather(*calls) == [1, 2, 3]
        assert first.done is None


async def test_what_cannot_be_encoded_is_the_failure_of_its_own_call():
    def refuse(result: Any) -> Any:
        raise StepFailed("cannot be sent")

    async with stays_of() as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        with pytest.raises(StepFailed, match="cannot be sent"):
            await shared.call(step, None, refuse)
        assert await reward(shared) == 2.0


async def test_a_name_tells_its_worker_and_cannot_be_guessed():
    async with stays_of(worker="2a") as shared_sessions:
        one, other = await shared_sessions.open(ANONYMOUS), await shared_sessions.open(ANONYMOUS)
        assert one.id.startswith("2a.")
        assert len(one.id) == 3 + 32
        assert len({one.id, other.id, one.token, other.token}) == 4
    async with stays_of() as shared_sessions:
        assert "." not in (await shared_sessions.open(ANONYMOUS)).id


async def test_a_session_is_for_the_key_that_opened_it_and_for_whoever_has_its_token():
    async with stays_of() as shared_sessions:
        shared = await shared_sessions.open(ALICE)
        assert shared.session.holder == 1
        assert shared.session.peer == "alice:1"
        assert shared_sessions.find(shared.id, ALICE) is shared
        assert shared_sessions.find(shared.id, BOB, shared.token) is shared
        for principal, token in ((BOB, None), (ANONYMOUS, None), (ALICE, "guessed"), (BOB, "\udcff")):
            with pytest.raises(Unauthorized):
                shared_sessions.find(shared.id, principal, token)


async def test_a_name_that_nobody_has_is_unknown():
    async with stays_of() as shared_sessions:
        with pytest.raises(UnknownSession, match="POST /sessions") as caught:
            shared_sessions.find("x" * 1000, ANONYMOUS)
        assert len(caught.value.message) < 300
        with pytest.raises(UnknownSession):
            shared_sessions.look_up("", ANONYMOUS)


async def test_closing_is_idempotent_and_gives_the_slot_back():
    async with stays_of(max_sessions=1) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        with pytest.raises(ServerFull):
            await shared_sessions.open(ANONYMOUS)
        await asyncio.gather(shared.close(), shared.close())
        await shared.close()
        with pytest.raises(UnknownSession, match="closed by its client"):
            shared_sessions.find(shared.id, ANONYMOUS)
        with pytest.raises(UnknownSession):
            await shared.call(reset)
        assert shared_sessions.look_up(shared.id, ANONYMOUS) is shared
        await (await shared_sessions.open(ANONYMOUS)).close()


async def test_sessions_that_ended_are_forgotten_when_they_are_many(monkeypatch):
    monkeypatch.setattr("openenv.server.shared_sessions.MOST_DEPARTED", 2)
    async with stays_of() as shared_sessions:
        ids = []
        for _ in range(3):
            shared = await shared_sessions.open(ANONYMOUS)
            await shared.close()
            ids.append(shared.id)
        with pytest.raises(UnknownSession):
            shared_sessions.look_up(ids[0], ANONYMOUS)
        assert shared_sessions.look_up(ids[1], ANONYMOUS).departed is not None


async def test_whoever_waits_when_a_session_ends_is_told():
    gate = Gate()
    async with stays_of(partial(Gated, stepping=gate)) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        heard: list[Any] = []
        shared.on_lost.append(heard.append)
        tasks = [asyncio.create_task(reward(shared)) for _ in range(2)]
        await gate.reached()
        closing = asyncio.create_task(shared.close())
        for task in tasks:
            with pytest.raises(SessionLost, match="closed by its client"):
                await task
        gate.open()
        await closing
        assert [type(error) for error in heard] == [SessionLost]


async def test_a_call_that_runs_out_of_time_on_the_loop_is_stopped_and_the_session_stays():
    class Hanging(AsyncPlain):
        async def step_async(self, action, timeout_s=None, **kwargs):
            await asyncio.Event().wait()

    async with stays_of(Hanging) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        with pytest.raises(StepTimeout, match=r"0\.05 s"):
            await shared.call(step, 0.05)
        assert await shared.call(reset)
        assert shared_sessions.find(shared.id, ANONYMOUS) is shared


async def test_a_call_that_runs_out_of_time_on_a_thread_takes_its_session_along():
    gate = Gate()
    async with stays_of(partial(Gated, stepping=gate)) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        late = asyncio.create_task(shared.call(step, 0.05))
        await gate.reached()
        with pytest.raises(StepTimeout, match="left behind"):
            await late
        with pytest.raises(UnknownSession, match="thread cannot be stopped"):
            shared_sessions.find(shared.id, ANONYMOUS)
        gate.open()


async def test_a_call_whose_turn_does_not_come_in_time_is_not_executed():
    gate = Gate()
    async with stays_of(partial(Gated, stepping=gate)) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        before = asyncio.create_task(reward(shared))
        await gate.reached()
        with pytest.raises(StepTimeout, match="not executed"):
            await shared.call(step, 0.05)
        gate.open()
        assert await before == 1.0
        assert await reward(shared) == 2.0


async def test_a_cancelled_caller_leaves_the_session_and_those_behind_it():
    gate = Gate()
    async with stays_of(partial(Gated, stepping=gate)) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        running, waiting, last = (asyncio.create_task(reward(shared)) for _ in range(3))
        await gate.reached()
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.open()
        assert await last == 2.0


async def test_more_calls_than_may_wait_are_refused():
    gate = Gate()
    async with stays_of(partial(Gated, stepping=gate), waiting=1) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        tasks = [asyncio.create_task(reward(shared)) for _ in range(2)]
        await gate.reached()
        with pytest.raises(TooManyCalls, match="OPENENV_MAX_IN_FLIGHT"):
            await shared.call(step)
        gate.open()
        assert await asyncio.gather(*tasks) == [1.0, 2.0]


async def test_a_start_that_raises_is_the_failure_of_its_own_call():
    def broken(session: Session, done: Any) -> None:
        raise ValueError("no such thing")

    async with stays_of() as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        with pytest.raises(ValueError, match="no such thing"):
            await shared.call(broken)
        assert await reward(shared) == 1.0


async def test_what_an_environment_raises_comes_back_and_the_session_stays():
    class Failing(Plain):
        def step(self, action, timeout_s=None, **kwargs):
            raise KeyError("lost")

    async with stays_of(Failing) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        with pytest.raises(StepFailed, match="lost"):
            await shared.call(step)
        assert await shared.call(reset)


async def test_a_session_that_cannot_be_opened_leaves_nothing():
    class Broken(Plain):
        def __init__(self) -> None:
            raise OSError("no licence")

    async with stays_of(Broken) as shared_sessions:
        with pytest.raises(FactoryFailed, match="no licence"):
            await shared_sessions.open(ANONYMOUS)


async def test_whoever_is_cancelled_while_it_opens_leaves_nothing():
    gate = Gate()
    manager = SessionManager(partial(Gated, making=gate), Limits(max_sessions=1))
    opening = asyncio.create_task(SharedSessions(manager, lambda: None, 8).open(ANONYMOUS))
    await gate.reached()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    gate.open()
    await until(lambda: manager.active == 0)
    await manager.aclose()


async def test_an_idle_session_ends_and_says_which_setting():
    async with stays_of(idle_timeout_s=0.05) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        await until(lambda: shared.departed is not None)
        with pytest.raises(UnknownSession, match=r"was idle for 0\.05 s \(idle_timeout_s\)"):
            shared_sessions.find(shared.id, ANONYMOUS)


async def test_a_connection_that_is_attached_keeps_a_session():
    async with stays_of() as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        first, second = LastSeen(), LastSeen()
        shared.lives += [first, second]
        shared.renew()
        assert shared.session.life is second
        shared.lives.remove(second)
        shared.renew()
        assert shared.session.life is first
        shared.lives.remove(first)
        shared.renew()
        assert shared.session.life is None


async def test_a_server_that_stops_ends_them():
    gate = Gate()
    manager = SessionManager(partial(Gated, stepping=gate), Limits(max_sessions=2))
    shared_sessions = SharedSessions(manager, lambda: None, 8)
    shared = await shared_sessions.open(ANONYMOUS)
    busy = asyncio.create_task(reward(shared))
    await gate.reached()
    ending = asyncio.create_task(manager.aclose())
    with pytest.raises(SessionLost, match="the server is stopping"):
        await busy
    gate.open()
    await ending
    manager.drain()
    with pytest.raises(Draining):
        await shared_sessions.open(ANONYMOUS)


async def test_thousands_of_calls_that_are_answered_at_once_do_not_pile_up():
    class Quick(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        execution = "inline"

        def reset(self):
            return {}

        def step(self, action):
            return {}

        @property
        def state(self):
            return {}

    async with stays_of(Quick, waiting=5000) as shared_sessions:
        shared = await shared_sessions.open(ANONYMOUS)
        done: list[Any] = []
        held: list[Any] = []
        shared.submit(lambda session, answer: held.append(answer), lambda *_: done.append(0))
        for _ in range(3000):
            shared.submit(step, lambda *_: done.append(1))
        assert done == []
        held[0](None, None)
        assert len(done) == 3001
