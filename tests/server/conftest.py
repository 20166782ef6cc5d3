"""Protocol v2 over each transport and in each codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from .probe import AsyncProbe, InlineProbe, ProbeEnvironment, app_of
from .talk import LINES, Talk
from .wires import WIRES

Open = Callable[[], Talk]
Line = Callable[..., AbstractContextManager[Open]]


@pytest.fixture(params=LINES, ids=lambda line: f"{line[0]}-{line[1].rpartition('.')[2]}")
def line(request) -> Line:
    """`with line(environment, max_sessions, **settings) as open_talk`: a server, and conversations with it."""
    transport, subprotocol = request.param

    @contextmanager
    def serve(*arguments: Any, **settings: Any) -> Iterator[Open]:
        app = app_of(*arguments, **settings)
        ProbeEnvironment.forget()
        with WIRES[transport](app) as open_wire:
            talks: list[Talk] = []

            def open_talk() -> Talk:
                talks.append(Talk(open_wire(subprotocol)))
                return talks[-1]

            yield open_talk
            ProbeEnvironment.gate.set()
            for talk in talks:
                talk.wire.close()
        assert app.state.openenv.active_sessions == 0

    return serve


@pytest.fixture
def talk(line) -> Iterator[Talk]:
    with line() as open_talk:
        yield open_talk()


@pytest.fixture(params=[ProbeEnvironment, InlineProbe, AsyncProbe], ids=["thread", "inline", "loop"])
def anywhere(request, line) -> Iterator[Talk]:
    """A conversation with a server whose environments run on threads, inline, or on the loop."""
    with line(request.param) as open_talk:
        yield open_talk()
