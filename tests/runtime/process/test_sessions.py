"""Processes under the roof of a session manager and a server."""

from __future__ import annotations

import os
import re

import pytest

from openenv.errors import (
    ConcurrencyConfigurationError,
    EnvironmentCrashed,
    FactoryFailed,
    ResetRequired,
    StepFailed,
    UsageError,
)
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.process import ProcessPool
from openenv.runtime.profile import Execution
from openenv.runtime.session import SessionState
from openenv.server import HTTPEnvServer
from openenv.server.metadata import environment_metadata
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ... import asynchronous
from ...asynchronous import open_session, outcome, until
from ...environments import Exclusive
from .wild import PATIENCE_S, Failing, Talkative, Unborn, Wild, alive, descriptors, gone

pytestmark = pytest.mark.usefixtures("no_threads_left")

ISOLATED = ServerSettings(isolation="process", process_pool=1)


def wants_a_process():
    return Wild()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A first session waits for an interpreter to start, on a machine that may be busy."""
    monkeypatch.setattr(asynchronous, "PATIENCE_S", PATIENCE_S)


async def test_instances_that_share_a_process_no_more_may_be_many():
    server = HTTPEnvServer(Exclusive, Action, Observation, settings=ISOLATED)
    assert server.max_concurrent_envs > 1
    one, _ = await open_session(server.manager)
    other, _ = await open_session(server.manager)
    assert one.profile.execution is Execution.PROCESS
    await outcome(lambda done: one.step(Action(), done))
    assert (await outcome(lambda done: one.step(Action(), done)))[0]["reward"] == 2.0
    assert (await outcome(lambda done: other.step(Action(), done)))[0]["reward"] == 1.0
    await server.aclose()


def test_without_isolation_they_may_not():
    assert HTTPEnvServer(Exclusive, Action, Observation).max_concurrent_envs == 1
    with pytest.raises(ConcurrencyConfigurationError):
        HTTPEnvServer(Exclusive, Action, Observation, 2)
    assert HTTPEnvServer(Exclusive, Action, Observation, 2, settings=ISOLATED).max_concurrent_envs == 2


async def test_a_class_may_ask_for_it_itself():
    manager = SessionManager(Wild, Limits(max_sessions=2))
    session, _ = await open_session(manager)
    fields, _ = await outcome(lambda done: session.reset({}, done))
    assert fields["metadata"]["pid"] != os.getpid()
    await manager.aclose()


async def test_one_that_asks_too_late_is_told_so():
    manager = SessionManager(wants_a_process, Limits(max_sessions=1))
    with pytest.raises(UsageError, match=r"-> Wild|--isolation"):
        await open_session(manager)
    await manager.aclose()


async def test_a_session_outlives_a_crash_and_tells_it_as_such():
    manager = SessionManager(Wild, Limits(max_sessions=1))
    session, witness = await open_session(manager)
    _, error = await outcome(lambda done: session.step(Action(metadata={"do": "leave", "code": 2}), done))
    assert type(error) is EnvironmentCrashed
    assert error.exit_code == 2
    _, error = await outcome(lambda done: session.step(Action(metadata={"do": "nothing"}), done))
    assert type(error) in {EnvironmentCrashed, ResetRequired}
    _, error = await outcome(lambda done: session.reset({}, done))
    assert error is None
    _, error = await outcome(lambda done: session.step(Action(metadata={"do": "fail"}), done))
    assert type(error) is StepFailed
    assert re.fullmatch(r"LookupError: there is no such door \(tests/runtime/process/wild\.py:\d+\)", error.message)
    assert witness.losses == []
    await manager.aclose()


async def test_a_constructor_that_fails_is_factory_failed():
    manager = SessionManager(Failing, Limits(max_sessions=1), ProcessPool(Failing, ISOLATED))
    with pytest.raises(FactoryFailed, match="ValueError: no licence"):
        await open_session(manager)
    await manager.aclose()


async def test_nothing_is_left_when_the_manager_is_closed():
    before = descriptors()
    manager = SessionManager(Wild, Limits(max_sessions=4))
    pids = []
    for _ in range(3):
        session, _ = await open_session(manager)
        fields, _ = await outcome(lambda done, session=session: session.reset({}, done))
        pids.append(fields["metadata"]["pid"])
    session.step(Action(metadata={"do": "resist"}), lambda result, error: None)
    await manager.aclose()
    assert not any(map(alive, pids))
    assert not descriptors() - before


async def test_closing_a_session_in_mid_call_ends_its_process():
    manager = SessionManager(Wild, Limits(max_sessions=1))
    session, _ = await open_session(manager)
    fields, _ = await outcome(lambda done: session.reset({}, done))
    session.step(Action(metadata={"do": "spin"}), lambda result, error: None)
    session.close()
    await gone(fields["metadata"]["pid"])
    await manager.aclose()


async def test_closing_a_session_whose_constructor_hangs_ends_its_process():
    manager = SessionManager(Unborn, Limits(max_sessions=1), ProcessPool(Unborn, ISOLATED))
    session = manager.create(lambda error: None)
    manager.open(session)
    await until(lambda: session.executor is not None)
    session.close()
    await until(lambda: session.state is SessionState.GONE)
    assert manager.held == 0
    await manager.aclose()


async def test_what_an_environment_tells_of_itself_comes_from_its_process():
    server = HTTPEnvServer(Talkative, Action, Observation, settings=ISOLATED)
    metadata = await environment_metadata(server)
    assert metadata.name == "Talkative"
    assert metadata.description.startswith("in process ")
    assert metadata.description != f"in process {os.getpid()}"
    await server.aclose()


async def test_it_starts_with_the_app():
    server = HTTPEnvServer(Exclusive, Action, Observation, settings=ISOLATED)
    server.manager.warm()
    assert server.manager.maker.pool.pid is not None
    await server.aclose()


def test_a_sandbox_means_processes(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    from openenv.runtime.process import sandbox

    sandbox.check.cache_clear()
    with pytest.raises(UsageError, match="install bubblewrap"):
        HTTPEnvServer(Exclusive, Action, Observation, settings=ServerSettings(sandbox="bwrap"))
