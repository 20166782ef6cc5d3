"""Calls of many environments that were made together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OpenEnvError

if TYPE_CHECKING:
    from .seat import Outcome, Seat

__all__ = ["Carrier", "Owner", "Wave"]


class Wave:
    """Calls with one deadline.

    Args:
        kind: What the caller asked for, for messages.
        outcomes: Where the results go, by number of the environment, in the order in which they come.
        first_finished: Somebody waits for the first of them, not for all.

    Attributes:
        left: Calls without an outcome.
        over: Done when there are none.
        timer: Goes off at the deadline.
        due: When its time is over, by the loop's clock; None for never.
        send_by: When the server shall send what is ready; None for as long as it takes.
        withdrawals: Ask the server to stop the work.
        withdrawn: Its caller has left.
    """

    def __init__(self, kind: str, outcomes: dict[int, Outcome], first_finished: bool):
        self.kind = kind
        self.outcomes = outcomes
        self.first_finished = first_finished
        self.left = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.due: float | None = None
        self.send_by: float | None = None
        self.withdrawals: list[Callable[[], None]] = []
        self.withdrawn = False

    def add(self, seat: Seat, outcome: Outcome) -> None:
        """One of them is done."""
        seat.pending = None
        self.outcomes[seat.index] = outcome
        self.left -= 1
        if not self.left:
            self.finish()

    def finish(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        # Who waited on an event loop that is closed cannot be told.
        if not self.over.done() and not self.over.get_loop().is_closed():
            self.over.set_result(None)


class Owner(Protocol):
    """Who makes rounds, and hears of their calls."""

    def settle(self, seat: Seat, wave: Wave, reply: dict[str, Any] | OpenEnvError) -> None:
        """The call of a seat has its reply; one that is no longer awaited is dropped."""

    def lose(self, seat: Seat, error: OpenEnvError) -> None:
        """The session of a seat is gone."""

    def flush(self) -> None:
        """That was all for now."""


class Carrier(Protocol):
    """The way that calls take to the server."""

    def carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        """Sends what seats were asked to do; the replies go to the owner, perhaps before this returns."""

    async def aclose(self) -> None:
        """Ends all sessions and connections, within a bounded time."""
