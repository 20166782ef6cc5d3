"""A lost connection made again, for as long as its server keeps the sessions it had."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..errors import (
    CapacityError,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    OpenEnvError,
    ProtocolViolation,
    SessionLost,
)
from .dial import Dial
from .link import Link
from .redial import FIRST_PAUSE_S, pause_of, redial
from .way import Way

__all__ = ["Resumption", "Verdict"]

Payload = dict[str, Any]
Verdict = Payload | OpenEnvError
"""What the server says of a session that comes back: where it stands, or that it is not there."""
# No server keeps a session longer.
LONGEST_WINDOW_S = 86_400.0


class Resumption:
    """How the sessions of a connection come back after its end.

    Args:
        dial: Opens a connection.
        patience_s: Seconds for connecting, for a hello and for the answers to `attach`, each.
    """

    def __init__(self, dial: Dial, patience_s: float):
        self._dial = dial
        self._patience_s = patience_s

    def window_s(self, link: Link) -> float:
        """Seconds for which the sessions of a link that has ended may come back; 0 if they cannot."""
        if not isinstance(link.error, ConnectionFailed) or not link.error.retryable:
            return 0.0
        if link.hello is None:  # it ended so early that nobody knows; nothing was answered yet
            return self._patience_s
        window = link.hello.get("resume_window_s")
        return min(window, LONGEST_WINDOW_S) if isinstance(window, (int, float)) and window > 0 else 0.0

    async def run(
        self, lost: Link, tokens: Callable[[], Mapping[str, str]], on_event: Callable[[str, Payload], None]
    ) -> tuple[Link, dict[str, Verdict]]:
        """Connects and attaches, again and again until the window is over.

        Args:
            lost: The link that has ended.
            tokens: What the sessions are attached with, asked for with each attempt.
            on_event: Hears events of sessions, from before they are attached.

        Returns:
            The new link, and what its server says of each session. Nothing was awaited since it was known to
            be up. A caller who is cancelled leaves neither a connection nor those sessions.

        Raises:
            SessionLost: It is not to be had any more, and why.
        """
        window, cause = self.window_s(lost), lost.error
        reason: OpenEnvError | None = None

        async def attempt() -> tuple[Link, dict[str, Verdict]]:
            nonlocal reason
            try:
                return await self._once(lost.way, tokens, on_event)
            except OpenEnvError as error:
                reason = error
                raise

        # `reason` says more than the exception: that of the window, or that of the last attempt.
        with contextlib.suppress(OpenEnvError, TimeoutError):
            async with asyncio.timeout(window):
                await asyncio.sleep(pause_of(FIRST_PAUSE_S))
                return await redial(attempt, window)
        assert cause is not None
        limit = "resume_window_s of the server" if lost.hello is not None else "connect_timeout_s"
        last = "" if reason is None else f": {reason.message}"
        raise SessionLost(
            f"the session is gone, call reset() for a new one: its connection was lost ({cause.message}), and "
            f"was not to be had again within {window:g} s ({limit}){last}"
        ) from (reason or cause)

    async def _once(
        self, way: Way, tokens: Callable[[], Mapping[str, str]], on_event: Callable[[str, Payload], None]
    ) -> tuple[Link, dict[str, Verdict]]:
        end = await self._dial(way)
        if not isinstance(end, Link):
            await end.aclose()
            raise ProtocolViolation("the server that is there now does not speak protocol v2")
        asked: Mapping[str, str] = {}
        try:
            await self._greeting(end)
            asked = tokens()
            end.on_event = on_event
            verdicts = await self._attach(end, asked)
        except OpenEnvError as error:
            end.end(error)
            raise
        except asyncio.CancelledError:
            await end.aclose(list(asked))
            raise
        return end, verdicts

    async def _greeting(self, link: Link) -> None:
        try:
            await link.greeting(self._patience_s)
        except ProtocolViolation as silence:  # a road that is bad now may be good in a moment
            raise ConnectTimeout(silence.message) from silence

    async def _attach(self, link: Link, tokens: Mapping[str, str]) -> dict[str, Verdict]:
        roll = _RollCall(len(tokens))
        try:
            async with asyncio.timeout(self._patience_s):
                for session, token in tokens.items():
                    fields = {"session": session, "token": token}
                    link.stream("attach", fields, partial(roll.present, session), partial(roll.absent, session))
                await roll.over
        except TimeoutError as error:
            raise ConnectTimeout(f"no answer to attach within {self._patience_s:g} s (connect_timeout_s)") from error
        if link.error is not None:
            raise ConnectionLost(f"the connection ended again: {link.error.message}") from link.error
        for verdict in roll.verdicts.values():
            if isinstance(verdict, CapacityError):  # not now
                raise verdict
        return roll.verdicts


class _RollCall:
    """Which sessions are there.

    Attributes:
        verdicts: What was said of each.
        over: Done when all have been called.
    """

    def __init__(self, count: int):
        self.verdicts: dict[str, Verdict] = {}
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count
        self._count_down(0)

    def present(self, session: str, payload: Payload, _more: bool) -> None:
        self.verdicts[session] = payload
        self._count_down(1)

    def absent(self, session: str, error: OpenEnvError) -> None:
        self.verdicts[session] = error
        self._count_down(1)

    def _count_down(self, by: int) -> None:
        self._left -= by
        if self._left <= 0 and not self.over.done():
            self.over.set_result(None)
