"""The state of an environment on its way from one session to another."""

from __future__ import annotations

import asyncio
from typing import Any

from openenv.runtime.admission import Limits
from openenv.runtime.executor import Snapshot
from openenv.runtime.manager import SessionManager

from ..asynchronous import open_session, outcome
from ..server.forkable import Walk
from ..server.probe import ProbeAction


class Counted(Snapshot):
    discarded = 0

    def discard(self) -> None:
        self.discarded += 1


async def test_a_seed_whose_session_is_stopped_before_its_turn_is_discarded():
    Walk.forget()
    manager = SessionManager(Walk, Limits(4, max_executing=1))
    (one, _), (two, _) = await open_session(manager), await open_session(manager)
    stepped: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    one.step(ProbeAction(kind="wait"), lambda result, error: stepped.set_result(error))
    assert await asyncio.to_thread(Walk.waiting.wait, 20)
    for give_up in (two.cancel, two.close):
        seed, failures = Counted(), []
        two.load(seed, one, lambda _, error, failures=failures: failures.append(error))
        assert not failures
        give_up()
        assert (len(failures), seed.discarded) == (1, 1)
    seed = Counted()
    _, error = await outcome(lambda done: two.load(seed, one, done))
    assert (type(error).__name__, seed.discarded) == ("SessionLost", 1)
    Walk.gate.set()
    assert await stepped is None
    await manager.aclose()
