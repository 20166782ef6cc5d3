"""What a connection and its sessions were made of goes when they end, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator

import pytest

from openenv.runtime.loop import InlineExecutor, LoopExecutor
from openenv.runtime.session import Session
from openenv.runtime.thread import ThreadExecutor
from openenv.server import HTTPEnvServer, create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..asynchronous import until
from ..environments import AsyncPlain, InlinePlain, Plain


class Channel:
    """A channel that knows its connection, as real ones do."""

    def __init__(self) -> None:
        self.frames = 0
        self.connection = None

    def send(self, frame: bytes) -> None:
        self.frames += 1

    def close(self, code: int) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def converse(server: HTTPEnvServer, subprotocol: str | None) -> tuple[weakref.ref[Channel], set[int]]:
    """A conversation from its beginning to its end: its channel, and the ids of its session and executor."""
    channel = Channel()
    connection = channel.connection = server.connect(channel, subprotocol)
    reset = {"type": "reset"}
    if subprotocol is not None:
        connection.receive(json.dumps({"id": 1, "op": "open", "session": "one"}).encode())
        reset = {"id": 2, "op": "reset", "session": "one", "seq": 1}
    await until(lambda: server.manager.active == 1)
    connection.receive(json.dumps(reset).encode())
    (session,) = server.manager.sessions
    made = {id(session), id(session.executor)}
    assert len(parts(made)) == len(made)
    await until(lambda: channel.frames == (1 if subprotocol is None else 3))
    connection.disconnected()
    channel.connection = None  # what a real channel does when its connection is over
    await until(lambda: server.manager.active == 0)
    assert session.user is None
    return weakref.ref(channel), made


def parts(made: set[int]) -> list[object]:
    """Those of the sessions and executors that are still there. Threads of other tests may make others."""
    kinds = (Session, InlineExecutor, LoopExecutor, ThreadExecutor)
    return [item for item in gc.get_objects() if type(item) in kinds and id(item) in made]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("subprotocol", [None, "openenv.v2.json"])
@pytest.mark.parametrize("environment", [InlinePlain, AsyncPlain, Plain])
async def test_a_connection_that_has_ended_leaves_nothing(environment, subprotocol):
    app = create_app(environment, Action, Observation, settings=ServerSettings.read({}, resume_window_s=0))
    server = app.state.openenv
    seen, made = await converse(server, subprotocol)
    await asyncio.sleep(0)
    assert seen() is None
    await until(lambda: parts(made) == [])  # the helper that closed it may still hold it
    await server.aclose()
