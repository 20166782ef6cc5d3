"""Many episodes at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..client import GenericEnvClient
from ..errors import CapacityError, OpenEnvError, PolicyFailed
from .cases import Case
from .episode import Episode, failed, play
from .policy import Policy

__all__ = ["Options", "Runner"]

# Seconds before a case is tried again, doubled each time, and the most of it.
PAUSE_S, MOST_PAUSE_S = 0.25, 8.0
# Seconds for which a case waits at a server that has no room for anybody.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to play.

    Attributes:
        concurrency: Episodes at once, each in a session of its own.
        max_steps: After so many an episode is over.
        retries: How often an episode that was lost to the infrastructure is played again, with the same seed.
        named: Whether episodes get names, by which their records are found.
    """

    concurrency: int = 64
    max_steps: int = 10_000
    retries: int = 2
    named: bool = False


@dataclass(slots=True)
class _Progress:
    """Where a case stands."""

    case: Case
    attempts: int = 0
    began: float = field(default_factory=time.monotonic)
    refused_at: float | None = None


class Runner:
    """Plays cases with a policy.

    A failure ends its episode and no other. One of the policy or of the environment would come again, so its episode
    is not repeated. One of the infrastructure says nothing about the policy, so its episode is played again, with the
    same seed, in a new session. What is wrong with the run as a whole (no such task, a wrong key) ends it.

    A server that is full is no failure: then fewer episodes are played at once.

    Args:
        connect: Makes a client with a session of its own.
        policy: Who acts.
        cases: What to play.
        options: How.
        heard: Called after each episode.

    Attributes:
        episodes: What was played so far, in the order in which it ended; complete when `run` returns, and readable
            after it was cancelled.
        players: How many played at once at the end.
    """

    def __init__(
        self,
        connect: Callable[[], GenericEnvClient],
        policy: Policy,
        cases: Sequence[Case],
        options: Options | None = None,
        heard: Callable[[Episode], None] = lambda episode: None,
    ):
        self._connect = connect
        self._policy = policy
        self._waiting = deque(_Progress(case) for case in cases)
        self._options = options or Options()
        self._heard = heard
        # Those who have a session.
        self._seated: set[GenericEnvClient] = set()
        self.episodes: list[Episode] = []
        self.players = min(self._options.concurrency, len(self._waiting))

    async def run(self) -> list[Episode]:
        """Plays all of them.

        Raises:
            OpenEnvError: No episode can be played, and it is not the policy's fault, nor the environment's.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.players):
                    group.create_task(self._play_along())
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return self.episodes

    async def _play_along(self) -> None:
        """One session after the other, for as long as there are cases."""
        more = True
        while more and self._waiting:
            client = self._connect()
            try:
                more = await self._in_session(client)
            finally:
                self._seated.discard(client)
                with suppress(OpenEnvError):
                    await client.close()

    async def _in_session(self, client: GenericEnvClient) -> bool:
        """Plays until the session is of no use any more. Returns whether another one shall be opened."""
        while self._waiting:
            progress = self._waiting.popleft()
            progress.attempts += 1
            try:
                episode = await self._played(client, progress)
            except CapacityError as error:
                return await self._refused(progress, error)
            except OpenEnvError as error:
                if not await self._settled(progress, error):
                    return True
            except asyncio.CancelledError:
                self._waiting.appendleft(progress)
                raise
            else:
                self._note(progress, episode)
        return False

    async def _played(self, client: GenericEnvClient, progress: _Progress) -> Episode:
        progress.began = time.monotonic()
        case, named = progress.case, {}
        if self._options.named:
            named["episode_id"] = _name_of(progress)
        first = await client.reset(**case.arguments(), **named)
        self._seated.add(client)
        return await play(client, case, self._policy, first, self._options.max_steps, named.get("episode_id"))

    async def _refused(self, progress: _Progress, error: CapacityError) -> bool:
        """No room for a session: those that have one play its case, or else it waits."""
        now = time.monotonic()
        progress.refused_at = progress.refused_at or now
        if not self._seated and now - progress.refused_at > PATIENCE_S:
            self._note(progress, failed(progress.case, error, now - progress.began))
            return True
        progress.attempts -= 1
        self._waiting.appendleft(progress)
        if self._seated:
            self.players -= 1
            return False
        await asyncio.sleep(error.retry_after_s or MOST_PAUSE_S / 8)
        return True

    async def _settled(self, progress: _Progress, error: OpenEnvError) -> bool:
        """What becomes of a case that failed. Returns whether the session may be used again."""
        if error.blame == "client" and not isinstance(error, PolicyFailed):
            raise error
        if error.blame == "infrastructure" and progress.attempts <= self._options.retries:
            self._waiting.append(progress)
            await asyncio.sleep(min(PAUSE_S * 2 ** (progress.attempts - 1), MOST_PAUSE_S))
            return False
        self._note(progress, failed(progress.case, error, time.monotonic() - progress.began))
        return isinstance(error, PolicyFailed)

    def _note(self, progress: _Progress, episode: Episode) -> None:
        episode.attempts = progress.attempts
        self.episodes.append(episode)
        self._heard(episode)


def _name_of(progress: _Progress) -> str:
    case = progress.case
    name = f"seed-{case.seed}" if case.index is None else f"{case.split}-{case.index}-{case.repeat}"
    return name if progress.attempts == 1 else f"{name}-again-{progress.attempts - 1}"


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that ended the others."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
