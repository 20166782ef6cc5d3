"""What is labelled as ours at a kind of place, whoever started it, and the removal of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import groupby

from ..background import on_thread
from ..errors import OpenEnvError
from .catalog import Entry
from .provider import Leftover, Provider

__all__ = ["Place", "places"]

# Seconds for a place to say what it has: one that does not answer keeps nobody from the others.
ANSWER_S = 30.0
# Seconds for the removal of one thing.
REMOVAL_S = 60.0
AT_ONCE = 16


class Place:
    """A kind of place, as far as it can be reached from here.

    Attributes:
        entry: Which kind.
        found: What is labelled there, in the order in which it may be removed.
        closed: Why it cannot be asked; None if it can be.
    """

    def __init__(self, entry: Entry):
        self.entry = entry
        self.found: list[Leftover] = []
        self.closed: str | None = None
        self._provider: Provider | None = None

    async def look(self) -> None:
        """Asks what is there. What goes wrong is told by `closed`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                if self._provider is None:
                    self._provider = await on_thread(self.entry.make, detached=True)  # it may hang
                self.found = await self._provider.leftovers()
        except TimeoutError:
            self.closed = f"no answer within {ANSWER_S:g} s"
        except Exception as error:  # noqa: BLE001 - whatever it is, the other places are to be looked at
            self.closed = _told(error)

    async def remove(self, wanted: Callable[[Leftover], bool]) -> list[tuple[Leftover, str | None]]:
        """Removes what is wanted, and says of each why it is still there; None: it is gone."""
        provider, turns = self._provider, asyncio.Semaphore(AT_ONCE)
        assert provider is not None

        async def one(leftover: Leftover) -> tuple[Leftover, str | None]:
            async with turns:
                try:
                    async with asyncio.timeout(REMOVAL_S):
                        await provider.discard(leftover)
                except TimeoutError:
                    return leftover, f"not within {REMOVAL_S:g} s"
                except Exception as error:  # noqa: BLE001 - whatever it is, the rest is to be removed
                    return leftover, _told(error)
                return leftover, None

        outcomes: list[tuple[Leftover, str | None]] = []
        # One kind after the other: a network goes when what is in it has gone.
        for _, kind in groupby(filter(wanted, self.found), lambda leftover: leftover.kind):
            outcomes += await asyncio.gather(*map(one, kind))
        return outcomes

    async def leave(self) -> None:
        """Gives up what the provider holds, if it holds anything."""
        close = getattr(self._provider, "close", None)
        if close is not None:
            await on_thread(close)


async def places(entries: Iterable[Entry]) -> list[Place]:
    """All of these places, each looked at."""
    found = [Place(entry) for entry in entries]
    await asyncio.gather(*(place.look() for place in found))
    return found


def _told(error: Exception) -> str:
    return error.message if isinstance(error, OpenEnvError) else f"{type(error).__name__}: {error}"
