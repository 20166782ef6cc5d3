"""Replies that are too large, on each transport."""

from __future__ import annotations

import re

import pytest

from .probe import InlineProbe, app_of
from .talk import Talk
from .wires import WIRES


@pytest.fixture(params=WIRES)
def open_wire(request):
    with WIRES[request.param](app_of(InlineProbe, max_reply_mb=0.1)) as open_wire:
        yield open_wire


def names_the_limit(message: str) -> bool:
    return (
        "104857 bytes (max_reply_mb, OPENENV_MAX_REPLY_MB)" in message
        and re.search(r"\b200\d{3} bytes", message) is not None
    )


def test_v1_gets_an_error_instead_and_the_session_goes_on(open_wire):
    wire = open_wire()
    assert wire.step("large", 50_000)["type"] == "observation"
    error = wire.step("large", 200_000)["data"]
    assert (error["code"], error["error"], error["blame"]) == ("EXECUTION_ERROR", "StepFailed", "environment")
    assert names_the_limit(error["message"])
    assert wire.step(number=3)["data"]["observation"]["step_count"] == 3
    wire.close()


@pytest.mark.parametrize("subprotocol", ["openenv.v2.json", "openenv.v2.msgpack"])
def test_v2_gets_an_error_instead_and_the_session_goes_on(open_wire, subprotocol):
    talk = Talk(open_wire(subprotocol))
    talk.open("one")
    assert talk.step("one", "large", 50_000)["ok"] is True
    error = talk.step("one", "large", 200_000)["error"]
    assert error["error"] == "StepFailed"
    assert names_the_limit(error["message"])
    assert talk.step("one", number=3)["observation"]["step_count"] == 3
    talk.ask("close", session="one")
    talk.wire.close()
