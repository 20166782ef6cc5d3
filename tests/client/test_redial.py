"""Connecting again: how often, how long, and when to stop."""

from __future__ import annotations

import pytest

from openenv.client import redial as module
from openenv.client.redial import redial
from openenv.errors import ConnectionFailed, ConnectTimeout, ProtocolViolation


class Road:
    """Fails as often as it is told, then gives a connection."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.attempts = 0

    async def dial(self):
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "connected"


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)


async def test_it_tries_until_there_is_a_connection():
    road = Road(ConnectionFailed("refused"), ConnectTimeout("silent"), ConnectionFailed("refused"))
    assert await redial(road.dial, 10) == "connected"
    assert road.attempts == 4


async def test_the_last_failure_is_told_when_patience_ends():
    road = Road(*(ConnectionFailed(f"attempt {number}") for number in range(1000)))
    with pytest.raises(ConnectionFailed, match="attempt") as caught:
        await redial(road.dial, 0.02)
    assert str(caught.value) == f"attempt {road.attempts - 1}"
    assert 1 < road.attempts < 10  # the pauses grow: 1, 2, 4, 8 ms


async def test_without_patience_there_is_one_attempt():
    road = Road(ConnectionFailed("refused"))
    with pytest.raises(ConnectionFailed):
        await redial(road.dial, 0)
    assert road.attempts == 1


@pytest.mark.parametrize("error", [ProtocolViolation("another language"), OSError("not ours")])
async def test_what_another_attempt_does_not_mend_is_told_at_once(error):
    road = Road(error)
    with pytest.raises(type(error)):
        await redial(road.dial, 10)
    assert road.attempts == 1
