"""Connecting again: how often, how long, and when to stop."""

from __future__ import annotations

import asyncio
import random

import pytest

from openenv import _backoff as module
from openenv._backoff import Backoff, jittered_pause, retry_connect
from openenv.errors import (
    ConnectionFailed,
    ConnectTimeout,
    Draining,
    ProtocolViolation,
    ServerFull,
    TooManyFailures,
    Unauthorized,
)


class Dialer:
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


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success():
    backoff = Backoff(0.5, 3.0)
    assert backoff.pause_s == 0.0
    assert [backoff.grow() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.pause_s == 0.0
    assert backoff.grow() == 0.5


async def test_it_tries_until_there_is_a_connection():
    dialer = Dialer(
        ConnectionFailed("refused"), ConnectTimeout("silent"), Draining("not now"), TooManyFailures("others")
    )
    assert await retry_connect(dialer.dial, 10) == "connected"
    assert dialer.attempts == 5


async def test_the_last_failure_is_told_when_patience_ends():
    dialer = Dialer(*(ConnectionFailed(f"attempt {number}") for number in range(1000)))
    with pytest.raises(ConnectionFailed, match="attempt") as caught:
        await retry_connect(dialer.dial, 0.02)
    assert str(caught.value) == f"attempt {dialer.attempts - 1}"
    assert 1 < dialer.attempts < 10  # the pauses grow: 1, 2, 4, 8 ms


async def test_without_patience_there_is_one_attempt():
    dialer = Dialer(ConnectionFailed("refused"))
    with pytest.raises(ConnectionFailed):
        await retry_connect(dialer.dial, 0)
    assert dialer.attempts == 1


@pytest.mark.parametrize(
    "error", [ProtocolViolation("another language"), Unauthorized("no key"), OSError("not ours")]
)
async def test_what_another_attempt_does_not_mend_is_told_at_once(error):
    dialer = Dialer(error)
    with pytest.raises(type(error)):
        await retry_connect(dialer.dial, 10)
    assert dialer.attempts == 1


async def test_it_waits_as_long_as_the_server_asks_for():
    dialer = Dialer(ServerFull(1, 1, retry_after_s=0.05))
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await retry_connect(dialer.dial, 10) == "connected"
    assert loop.time() - started >= 0.045


def test_no_two_clients_come_back_together():
    pauses = {jittered_pause(1.0) for _ in range(100)}
    assert len(pauses) > 90
    assert 0.5 <= min(pauses) < 0.6
    assert 0.9 < max(pauses) <= 1.0


def test_the_random_numbers_of_the_program_are_left_alone():
    """A trainer that has seeded `random` gets the same numbers, however often its connections were lost."""
    before = random.getstate()
    pauses = {jittered_pause(1.0) for _ in range(10)}
    assert random.getstate() == before
    assert len(pauses) > 1
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
