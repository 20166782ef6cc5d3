"""Processes of sessions that become two."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.errors import EnvironmentCrashed, NotForkable, ResetRequired, UsageError
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.process import ProcessPool
from openenv.runtime.process import sandbox as sandboxes
from openenv.runtime.session import Origin, Session
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ... import asynchronous
from ...asynchronous import Witness, open_session, outcome
from .wild import PATIENCE_S, Wild, alive, gone, names, until

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Walker(Wild):
    """Goes a random way of two kinds of random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.way: list[float] = []

    def reset(self, seed=None, episode_id=None) -> Observation:
        random.seed(seed)
        self.way = []
        return super().reset(seed)

    def walk(self) -> list[float]:
        self.way.append(self.rng.random() + random.random())
        return list(self.way)

    def whoami(self) -> int:
        return os.getpid()

    def parent(self) -> int:
        return os.getppid()

    def start_thread(self) -> None:
        self.thread = threading.Thread(target=threading.Event().wait, daemon=True)
        self.thread.start()


class SavingWalker(Walker):
    """Has what no process can be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def save_state(self) -> Any:
        return {"steps": self.steps, "way": self.way, "random": random.getstate()}

    def load_state(self, state: Any) -> None:
        self.steps, self.way = state["steps"], state["way"]
        random.setstate(state["random"])


class AsyncWalker(Walker):
    async def reset_async(self, seed=None, episode_id=None) -> Observation:
        return self.reset(seed)

    async def step_async(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        await asyncio.sleep(0)
        return self.step(action)

    def walk(self) -> list[float]:
        self.way.append(self.rng.random())
        return list(self.way)


class Huge(SavingWalker):
    def save_state(self) -> Any:
        return b"x" * 3_000_000


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(asynchronous, "PATIENCE_S", PATIENCE_S)


class House:
    """A manager of processes, and what is said to its sessions."""

    def __init__(self, factory: Any, **settings: Any):
        given = ServerSettings(isolation="process", process_pool=1, **settings)
        self.manager = SessionManager(factory, Limits(8), ProcessPool(factory, given))

    async def open(self, seed: int | None = 5) -> Session:
        session, _ = await open_session(self.manager)
        await outcome(lambda done: session.reset({"seed": seed}, done))
        return session

    async def do(self, session: Session, what: str = "walk") -> Any:
        observation, error = await outcome(lambda done: session.step(Action(metadata={"do": what}), done))
        if error is not None:
            raise error
        return observation["metadata"]["done"]

    async def fork(self, source: Session) -> Session:
        witness, freed = Witness(), asyncio.Event()
        session = self.manager.create(witness.opened, witness.lost)
        session.origin = Origin(source, freed.set)
        self.manager.open(session)
        await witness.heard()
        await asyncio.wait_for(freed.wait(), PATIENCE_S)
        if witness.errors:
            raise witness.errors[0]
        return session

    async def restore(self, session: Session, source: Session) -> None:
        seed, error = await outcome(source.save)
        assert error is None, error
        _, error = await outcome(lambda done: session.load(seed, source, done))
        assert error is None, error

    async def __aenter__(self) -> House:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.manager.aclose()


@pytest.mark.parametrize("factory", [Walker, SavingWalker, AsyncWalker])
async def test_a_fork_in_a_process_of_its_own_goes_on_as_the_original_would(factory):
    async with House(factory) as house:
        one = await house.open()
        before = await house.do(one)
        two = await house.fork(one)
        pids = {await house.do(session, "whoami") for session in (one, two)}
        assert len(pids) == 2
        onward = [await house.do(two) for _ in range(3)]
        assert onward == [await house.do(one) for _ in range(3)]
        assert onward[0][:1] == before
        # One of its own can be forked again, and both go their ways.
        three = await house.fork(two)
        await house.do(two)
        assert len(await house.do(three)) == 5
        assert (two.steps, three.steps) == (two.steps, three.steps)
    await gone(*pids)


async def test_without_a_seed_the_random_numbers_of_a_fork_go_on_too():
    async with House(Walker) as house:
        one = await house.open(seed=None)
        two = await house.fork(one)
        assert await house.do(two) == await house.do(one)


@pytest.mark.parametrize("factory", [Walker, SavingWalker])
async def test_a_restored_session_goes_on_from_the_other_one(factory):
    async with House(factory) as house:
        one = await house.open()
        await house.do(one)
        kept = await house.fork(one)
        tried = [await house.do(one) for _ in range(2)]
        for _ in range(2):
            await house.restore(one, kept)
            assert [await house.do(one) for _ in range(2)] == tried
        assert len(await house.do(kept)) == 2


async def test_a_killed_fork_is_lost_alone_and_can_be_restored():
    async with House(Walker) as house:
        one = await house.open()
        two, three = await house.fork(one), await house.fork(one)
        os.kill(await house.do(two, "whoami"), signal.SIGKILL)
        with pytest.raises(EnvironmentCrashed, match="SIGKILL"):
            await house.do(two)
        assert len(await house.do(one)) == len(await house.do(three)) == 1
        await house.restore(two, one)
        assert len(await house.do(two)) == 2


async def test_forks_live_on_without_the_process_they_come_from():
    async with House(Walker) as house:
        one = await house.open()
        two = await house.fork(one)
        os.kill(await house.do(one, "whoami"), signal.SIGKILL)
        with pytest.raises(EnvironmentCrashed):
            await house.do(one)
        assert len(await house.do(two)) == 1
        with pytest.raises((ResetRequired, EnvironmentCrashed)):
            await house.fork(one)
        one.close()
        assert len(await house.do(two)) == 2


async def test_a_fork_has_its_own_road_descriptors_and_last_words():
    async with House(Walker) as house:
        one = await house.open()
        before = await house.do(one, "descriptors")
        two = await house.fork(one)
        assert await house.do(one, "descriptors") == before
        assert await house.do(two, "descriptors") == before
        pids = [await house.do(session, "whoami") for session in (one, two)]
        assert [os.getpgid(pid) for pid in pids] == pids
        _, error = await outcome(
            lambda done: two.step(Action(metadata={"do": "leave", "code": 3, "words": "goodbye"}), done)
        )
        assert isinstance(error, EnvironmentCrashed)
        assert (error.exit_code, error.stderr) == (3, "goodbye")
        assert alive(pids[0])


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keeps a process from running, as a busy machine may."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_fork_that_is_there_before_the_fork_server_reads_of_it_is_not_ended_as_an_orphan():
    async with House(Walker) as house:
        one, other = await house.open(), await house.open()
        pid = await house.do(other, "whoami")
        with stopped(await house.do(one, "parent")):
            two = await house.fork(one)
            leaving = asyncio.create_task(outcome_of(other, {"do": "leave", "code": 3}))
            await gone(pid)
        with pytest.raises(EnvironmentCrashed):  # the fork server ends orphans when a session has ended
            await leaving
        assert len(await house.do(two)) == 1


async def test_a_fork_that_ends_before_the_fork_server_reads_of_it_ends_with_its_exit_code():
    async with House(Walker) as house:
        one = await house.open()
        with stopped(await house.do(one, "parent")):
            two = await house.fork(one)
            pid = await house.do(two, "whoami")
            leaving = asyncio.create_task(outcome_of(two, {"do": "leave", "code": 3, "words": "goodbye"}))
            await until(lambda: not alive(pid))
        with pytest.raises(EnvironmentCrashed) as caught:
            await leaving
        assert (caught.value.exit_code, caught.value.stderr) == (3, "goodbye")
        assert len(await house.do(one)) == 1


async def test_a_fork_is_limited_and_stopped_like_any_process():
    async with House(Walker, process_children=3) as house:
        one = await house.open()
        two = await house.fork(one)
        assert await house.do(two, "limits") == await house.do(one, "limits")
        stopped: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        two.step(Action(metadata={"do": "resist"}), lambda result, error: stopped.set_result(error))
        two.cancel()
        assert isinstance(await asyncio.wait_for(stopped, PATIENCE_S), ResetRequired)
        three = await house.fork(one)
        with pytest.raises(EnvironmentCrashed, match="process_children"):
            await outcome_of(three, {"do": "multiply", "times": 5})
        assert len(await house.do(one)) == 1


async def outcome_of(session: Session, arguments: dict[str, Any]) -> Any:
    _, error = await outcome(lambda done: session.step(Action(metadata=arguments), done))
    if error is not None:
        raise error


async def test_a_process_with_threads_is_not_forked_and_says_so():
    async with House(Walker) as house:
        one = await house.open()
        await house.do(one, "start_thread")
        with pytest.raises(NotForkable, match="has 2 threads"):
            await house.fork(one)
        assert len(await house.do(one)) == 1


async def test_a_state_that_is_too_large_to_be_sent_is_refused():
    async with House(Huge, process_output_mb=2) as house:
        one = await house.open()
        with pytest.raises(NotForkable, match="process_output_mb"):
            await house.fork(one)
        assert len(await house.do(one)) == 1


async def test_a_fork_that_nobody_waits_for_any_more_leaves_no_process():
    async with House(Walker) as house:
        one = await house.open()
        witness = Witness()
        session = house.manager.create(witness.opened, witness.lost)
        freed = asyncio.Event()
        session.origin = Origin(one, freed.set)
        house.manager.open(session)
        session.close()
        await asyncio.wait_for(freed.wait(), PATIENCE_S)
        mine = await house.do(one, "whoami")
        parent = house.manager.maker.pool.pid
        await until(lambda: _children_of(parent) <= 2)  # the pool's, and its own
        assert alive(mine)
        assert len(await house.do(one)) == 1


def _children_of(pid: int | None) -> int:
    return sum(1 for name in names("/proc") if name.isdigit() and _parent_of(name) == pid)


def _parent_of(name: str) -> int | None:
    try:
        fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]) if fields[0] != b"Z" else None


async def test_many_forks_at_once_are_all_there():
    async with House(Walker) as house:
        one = await house.open()
        await house.do(one)
        level = [one]
        for _ in range(2):
            level += [await house.fork(session) for session in level]
        assert len({tuple(await house.do(session)) for session in level}) == 1
        assert len({await house.do(session, "whoami") for session in level}) == 4


@pytest.mark.parametrize("factory", [Walker, SavingWalker])
async def test_in_a_sandbox_the_state_goes_to_another_one(factory):
    try:
        sandboxes.check("bwrap")
    except UsageError as error:
        pytest.skip(str(error))
    async with House(factory, sandbox="bwrap") as house:
        one = await house.open()
        await house.do(one)
        two = await house.fork(one)
        assert len(await house.do(two)) == 2
        one.close()
        assert len(await house.do(two)) == 3
