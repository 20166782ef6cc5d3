"""The fork server: its pool, its death, and what it cannot make."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from openenv.errors import EnvironmentCrashed, UsageError
from openenv.runtime.process import ProcessPool
from openenv.runtime.process import pool as pool_module
from openenv.settings import ServerSettings

from .wild import PATIENCE_S, Patient, Wild, alive, descendants, gone, local_factory, pool_of, until

pytestmark = pytest.mark.usefixtures("no_threads_left")


async def children(pool: ProcessPool, count: int) -> list[int]:
    """The processes of sessions, as soon as so many of them live."""
    found: list[int] = []

    def all_there() -> bool:
        found[:] = filter(alive, descendants(pool.pid)[1:])
        return len(found) == count

    await until(all_there)
    return found


async def test_processes_are_kept_ready_and_replaced_when_they_are_taken(loop_factory):
    async with pool_of(process_pool=2) as pool:
        pool.warm()
        first = await children(pool, 2)
        patient = Patient(pool)
        assert await patient.start() is None
        assert await patient.pid() in first
        assert len(await children(pool, 3)) == 3
        assert len(pool._ready) == 2
        await patient.close()


async def test_many_sessions_open_at_once_each_in_its_own_process():
    async with pool_of(process_pool=2) as pool:
        patients = [Patient(pool) for _ in range(12)]
        assert await asyncio.gather(*(patient.start() for patient in patients)) == [None] * 12
        assert len({await patient.pid() for patient in patients}) == 12


async def test_one_that_dies_while_it_waits_is_replaced(monkeypatch):
    monkeypatch.setattr(pool_module, "REPLACE_S", 0.01)
    async with pool_of(process_pool=1) as pool:
        pool.warm()
        (pid,) = await children(pool, 1)
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        (other,) = await children(pool, 1)
        assert other != pid


async def test_when_the_warm_parent_dies_its_sessions_fail_and_others_start():
    async with pool_of(process_pool=1) as pool:
        waiting, working = Patient(pool), Patient(pool)
        assert await waiting.start() is None
        assert await working.start() is None
        pids = [await waiting.pid(), await working.pid()]
        first = pool.pid
        call = asyncio.ensure_future(working.step(do="hang"))
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        _, error = await call
        assert type(error) is EnvironmentCrashed
        assert "fork server ended" in error.message
        await gone(*pids)
        _, error = await waiting.step()
        assert type(error) is EnvironmentCrashed
        assert await waiting.pid() not in pids
        assert pool.pid != first


async def test_a_session_opened_while_there_is_no_warm_parent_waits_for_the_next(monkeypatch):
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.2)
    async with pool_of() as pool:
        first = Patient(pool)
        assert await first.start() is None
        died, noticed = pool.on_exit, asyncio.Event()

        def mourned() -> None:
            died()
            noticed.set()

        monkeypatch.setattr(pool, "on_exit", mourned)
        os.kill(pool.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            await noticed.wait()  # and nothing more: the next parent may be due already
        assert pool.pid is None
        assert await Patient(pool).start() is None


async def test_a_module_that_cannot_be_imported_there_is_said(tmp_path, monkeypatch):
    module = tmp_path / "only_here.py"
    module.write_text(
        "import os, openenv\n"
        "class Env(openenv.Environment):\n"
        "    reset = step = state = None\n"
        f"if os.getpid() != {os.getpid()}: raise ImportError('no such licence')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    async with pool_of(only_here.Env) as pool:
        error = await Patient(pool).start()
        assert type(error) is EnvironmentCrashed
        assert "no such licence" in error.message
    del sys.modules["only_here"]


async def test_what_the_module_started_when_it_was_imported_serves_all_sessions(tmp_path, monkeypatch):
    (tmp_path / "with_helper.py").write_text(
        "import subprocess, sys\n"
        "from tests.runtime.process.wild import Wild\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "class Env(Wild):\n"
        "    def helper(self):\n"
        "        return helper.pid\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import with_helper

    with_helper.helper.communicate()
    async with pool_of(with_helper.Env) as pool:
        one, other = Patient(pool), Patient(pool)
        assert await one.start() is None
        assert await other.start() is None
        helper = await other.do(do="helper")
        await one.close()
        await other.do(do="escape")
        await other.close()
        assert alive(helper)
    assert not alive(helper)
    del sys.modules["with_helper"]


async def test_what_left_its_group_lives_as_long_as_its_own_session():
    async with pool_of() as pool:
        one, other = Patient(pool), Patient(pool)
        assert await one.start() is None
        assert await other.start() is None
        escaped = await one.do(do="escape", deep=True)
        await other.close()
        third = Patient(pool)
        assert await third.start() is None  # by now the fork server has looked for what was left behind
        await third.close()
        assert alive(escaped)
        await one.close()
        await gone(escaped)


async def test_nothing_is_started_before_it_is_needed():
    async with pool_of(process_pool=2) as pool:
        await asyncio.sleep(0)
        assert pool.pid is None


async def test_it_can_be_used_again_after_it_was_closed():
    async with pool_of() as pool:
        for _ in range(2):
            patient = Patient(pool)
            assert await patient.start() is None
            pid = await patient.pid()
            await pool.aclose()
            assert not alive(pid)


def test_the_next_event_loop_starts_anew():
    pool = ProcessPool(Wild, ServerSettings(process_pool=1))
    pids = []

    async def use() -> None:
        patient = Patient(pool)
        assert await patient.start() is None
        pids.append(await patient.pid())

    async def end() -> None:
        await use()
        await pool.aclose()
        assert not any(map(alive, pids))

    asyncio.run(use())
    asyncio.run(end())


def test_a_factory_that_no_process_finds_is_refused_at_once():
    with pytest.raises(UsageError, match="top of the module"):
        ProcessPool(local_factory(), ServerSettings())
