"""Envoy as a process, with others in its place. `tests/infra` has the real one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from openenv.errors import LaunchFailed, ProviderFailed
from openenv.providers import Gateway
from openenv.providers.gateway import programs as module
from openenv.providers.gateway.programs import BALANCERS
from openenv.providers.process import Process

from ...asynchronous import Gate


class Slow:
    """Makes a process when the test lets it."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.made: list[Process] = []

    def __call__(self, *_: Any) -> Process:
        self.gate.wait()
        self.made.append(Process(["sleep", "60"], {"PATH": os.defpath}))
        return self.made[0]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow = Slow()
    monkeypatch.setattr(module, "Process", slow)
    monkeypatch.setattr(module, "validate", lambda *_: None)
    return slow


async def test_a_start_that_is_cancelled_while_the_process_begins_leaves_none(slow: Slow) -> None:
    gateway = Gateway(program="envoy")
    start = asyncio.ensure_future(gateway.start())
    await slow.gate.reached()
    start.cancel()
    slow.gate.open()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert [process.end is not None for process in slow.made] == [True]


async def test_a_stop_while_the_process_begins_waits_for_its_end(slow: Slow) -> None:
    gateway = Gateway(program="envoy")
    start = asyncio.ensure_future(gateway.start())
    await slow.gate.reached()
    stop = asyncio.ensure_future(gateway.stop())
    slow.gate.open()
    await stop
    assert [process.end is not None for process in slow.made] == [True]
    with pytest.raises(ProviderFailed):
        await start


async def test_a_stop_while_the_configuration_is_looked_at_is_followed_by_no_process(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Gate()
    monkeypatch.setattr(module, "validate", lambda *_: look.wait())
    slow.gate.open()
    gateway = Gateway(program="envoy")
    start = asyncio.ensure_future(gateway.start())
    await look.reached()
    await gateway.stop()
    look.open()
    with pytest.raises(ProviderFailed, match="stopped during the call"):
        await start
    assert slow.made == []


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_a_program_that_cannot_look_is_no_traceback(kind: str, tmp_path: Any) -> None:
    with pytest.raises(LaunchFailed, match=r"/nowhere/it could not check the configuration"):
        BALANCERS[kind].check("/nowhere/it", Gateway().topology, tmp_path)
