"""Heartbeats that come when a test says so: a machine that holds a client up for a moment changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openenv.server.timers import Keepalive, KeepaliveTarget
from openenv.server.transports.picows import _HEARD

from .wires import PATIENCE_S, eventually

__all__ = ["ByHand", "beats_by_hand"]

NEVER_S = 3600.0


class ByHand(Keepalive):
    """The clock does not get to it.

    Attributes:
        pulses: The connections that it was given to watch.
    """

    def __init__(self, interval_s: float | None, patience: int = 1):
        super().__init__(interval_s and NEVER_S, patience)
        self.pulses: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, pulse: KeepaliveTarget) -> None:
        super().watch(pulse)
        self._loop = asyncio.get_running_loop()
        self.pulses.append(pulse)

    @property
    def pulse(self) -> Any:
        """The first connection, as soon as there is one."""
        eventually(lambda: bool(self.pulses))
        return self.pulses[0]

    def on_the_loop(self, function: Callable[[], Any]) -> Any:
        """What a function returns there. Called by the test, from its own thread."""
        assert self.pulse
        assert self._loop is not None

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def wait_for_a_sign(self) -> None:
        """Until the first connection, one of the fast path, was heard since the last beat."""
        eventually(lambda: self.pulse.heard == _HEARD)

    def beats(self, times: int = 1) -> None:
        """So many intervals pass. Called by the test, from its own thread."""
        for _ in range(times):
            self.on_the_loop(self.beat)


def beats_by_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ByHand]:
    """Servers that are made from now on have such ones for words (`app.state.openenv.app_keepalive`) and for pings.

    Returns:
        What gives the one for pings of the only uvicorn server, as soon as somebody has connected to it.
    """
    made: list[ByHand] = []

    def for_pings(interval_s: float | None) -> ByHand:
        made.append(ByHand(interval_s))
        return made[-1]

    def pings() -> ByHand:
        eventually(lambda: bool(made))
        return made[0]

    monkeypatch.setattr("openenv.server.server.Keepalive", ByHand)
    monkeypatch.setattr("openenv.server.transports.context.Keepalive", for_pings)
    return pings
