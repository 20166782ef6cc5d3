"""Many recorded episodes, played again at once."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator

from ..errors import SeedIgnored
from ..recording.reader import Episode
from .player import Player, Rules
from .venue import Venue
from .verdict import Verdict

__all__ = ["replay"]


async def replay(
    episodes: Iterator[Episode],
    venue_of: Callable[[Episode], Venue],
    rules: Rules,
    sessions: int,
    heard: Callable[[Verdict], None],
) -> None:
    """Plays episodes, so many at a time, each in a session of its own.

    May be cancelled at any time; no session is left then.

    Args:
        episodes: Read as they are played, and no further ahead.
        venue_of: Where an episode is played.
        rules: How it is compared.
        sessions: How many are played at a time.
        heard: Gets each verdict when it is there.

    Raises:
        OpenEnvError: Of the records or of the place: what an episode does is in its verdict.
    """
    reading = asyncio.Lock()

    async def play() -> None:
        while True:
            async with reading:
                episode = await asyncio.to_thread(next, episodes, None)
            if episode is None:
                return
            heard(await Player(episode, venue_of(episode), rules).verdict())

    try:
        with warnings.catch_warnings():
            # The verdict says so of each episode.
            warnings.simplefilter("ignore", SeedIgnored)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(sessions):
                    tasks.create_task(play())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
