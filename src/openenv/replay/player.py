"""One recorded episode, played again in a session of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ..client import GenericEnvClient
from ..client.mcp_client import ask_session
from ..errors import (
    InvalidAction,
    OpenEnvError,
    ResetRequired,
    RubricFailed,
    SchemaMismatch,
    StepFailed,
    ToolFailed,
    UnreadableRecord,
)
from ..mcp.types import DIRECT_CALL, McpMethod, observation_of
from ..recording.reader import Episode, Transition
from ..testing.difference import Difference, close, first_difference
from ..types import StepResult
from .venue import Venue
from .verdict import Divergence, Outcome, Verdict

__all__ = ["Pair", "Player", "Rules"]

# What an environment answers by itself, so that it answers it again. The others are of the moment: a deadline, a
# process that was killed, a connection.
_OWN = {each.__name__ for each in (StepFailed, RubricFailed, ToolFailed, InvalidAction, ResetRequired)}
# How records write floats that JSON does not have.
_FLOATS = {"NaN", "Infinity", "-Infinity"}


@dataclass(frozen=True, slots=True)
class Rules:
    """How episodes are played and compared.

    Attributes:
        same: Whether two values without parts are the same.
        unseeded: Play those that were reset without a seed, too.
        timeout_s: Seconds for each call; None: no limit.
    """

    same: Callable[[Any, Any], bool] = close
    unseeded: bool = False
    timeout_s: float | None = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One transition, as it was and as it is.

    Attributes:
        recorded: From the record.
        played: What came of the same call; None where it failed.
        error: How it failed.
        divergence: The first difference; None: they are the same.
    """

    recorded: Transition
    played: StepResult[dict[str, Any]] | None
    error: OpenEnvError | None
    divergence: Divergence | None


class Player:
    """Plays one episode.

    Args:
        episode: The record.
        venue: Where to play.
        rules: How to compare.
    """

    def __init__(self, episode: Episode, venue: Venue, rules: Rules):
        self._episode = episode
        self._venue = venue
        self._rules = rules
        self._note = ""
        self._outcome: Outcome | None = None

    async def verdict(self, heard: Callable[[Pair], None] | None = None) -> Verdict:
        """Plays until something differs, or to the end.

        Args:
            heard: Gets each transition; with it, the episode is played to its end in any case.
        """
        steps = 0
        first: Divergence | None = None
        try:
            async with aclosing(self._pairs()) as pairs:
                async for pair in pairs:
                    first = first or pair.divergence
                    if first is None:
                        steps = pair.recorded.step
                    elif heard is None:
                        break
                    if heard is not None:
                        heard(pair)
        except SchemaMismatch as error:
            self._end(Outcome.MISMATCHED, error.message)
        except UnreadableRecord as error:
            self._end(Outcome.FAILED, error.message)
        return self._told(steps, first)

    def _told(self, steps: int, first: Divergence | None) -> Verdict:
        episode = self._episode
        outcome = Outcome.DIFFERENT if first is not None else self._outcome or Outcome.SAME
        return Verdict(
            episode.episode_id,
            episode.session_id,
            episode.environment,
            episode.seed,
            outcome,
            steps,
            first,
            self._note,
        )

    async def _pairs(self) -> AsyncGenerator[Pair]:
        """Each transition, as far as the episode can be played.

        Raises:
            SchemaMismatch: The record was made with other schemas.
            UnreadableRecord: It cannot be read to its end.
        """
        episode = self._episode
        if not episode.whole:
            self._end(Outcome.INCOMPLETE, _beginning(episode))
            return
        self._venue.check(episode.schema, episode.environment, episode.versions)
        client = self._venue.client(self._rules.timeout_s)
        try:
            async with aclosing(self._played(client)) as pairs:
                async for pair in pairs:
                    yield pair
        finally:
            await client.close()

    async def _played(self, client: GenericEnvClient) -> AsyncGenerator[Pair]:
        for number, recorded in enumerate(self._episode.transitions()):
            if number == 0 and self._unseeded(recorded):
                return
            if recorded.step != number:
                self._end(None, f"compared up to step {number - 1}: the record lacks step {number}")
                return
            if recorded.error_class and recorded.error_class not in _OWN:
                self._end(None, f"compared up to step {number - 1}: then {recorded.error_class} was recorded")
                return
            if recorded.step_arguments and not _is_direct(recorded):
                self._end(None, f"compared up to step {number - 1}: the next had arguments beside its action (HTTP)")
                return
            result, error = await self._called(client, recorded)
            if error is not None and type(error).__name__ not in _OWN:
                self._end(
                    Outcome.FAILED, f"step {number} could not be played: {type(error).__name__}: {error.message}"
                )
                return
            if result is not None and recorded.step == 0 and self._takes_no_seed(result):
                return
            yield Pair(recorded, result, error, self._divergence(recorded, result, error))

    async def _called(
        self, client: GenericEnvClient, recorded: Transition
    ) -> tuple[StepResult[dict[str, Any]] | None, OpenEnvError | None]:
        try:
            if _is_direct(recorded):
                return await self._called_directly(client, recorded), None
            if recorded.step:
                return await client.step(recorded.action), None
            return await client.reset(**self._arguments(recorded)), None
        except OpenEnvError as error:
            return None, error

    async def _called_directly(self, client: GenericEnvClient, recorded: Transition) -> StepResult[dict[str, Any]]:
        """Calls a tool that was called, and is no step."""
        name, arguments = recorded.action["tool_name"], recorded.action["arguments"]
        call = ask_session(
            client, McpMethod.TOOLS_CALL, {"name": name, "arguments": arguments}, self._rules.timeout_s
        )
        return StepResult(observation=observation_of(name, await call))

    def _arguments(self, reset: Transition) -> dict[str, Any]:
        arguments = dict(reset.arguments or {})
        if reset.seed is not None:
            arguments["seed"] = reset.seed
        # One that its client gave, and no name that the recorder made.
        if not self._episode.episode_id.startswith(f"{self._episode.session_id}-"):
            arguments.setdefault("episode_id", self._episode.episode_id)
        return arguments

    def _unseeded(self, reset: Transition) -> bool:
        seeded = reset.seed is not None or (reset.arguments or {}).get("seed") is not None
        if seeded or self._rules.unseeded:
            return False
        self._end(Outcome.UNSEEDED, "it was reset without a seed, so it need not be the same")
        return True

    def _takes_no_seed(self, reset: StepResult[dict[str, Any]]) -> bool:
        if self._rules.unseeded or (reset.metadata or {}).get("seedable") is not False:
            return False
        self._end(Outcome.UNSEEDED, "its environment takes no seed, so it need not be the same")
        return True

    def _divergence(
        self, recorded: Transition, played: StepResult[dict[str, Any]] | None, error: OpenEnvError | None
    ) -> Divergence | None:
        was, now = recorded.error_class, None if error is None else type(error).__name__
        # Not every record says of which class an error was.
        if was != now and not (was == "" and now):
            said = None if error is None else f"{now}: {error.message}"
            return _apart(recorded.step, "error", recorded.error, said)
        if played is None:
            return None
        schema = self._venue.observation(recorded.step)
        found = first_difference(recorded.observation, played.observation, schema, self._same)
        if found is not None:
            return Divergence(recorded.step, "observation", found)
        for part in ("reward", "done", "terminated", "truncated"):
            one, other = getattr(recorded, part), getattr(played, part)
            # Not every server tells how an episode has ended.
            unsaid = one is None and part in {"terminated", "truncated"}
            if not unsaid and not self._same(one, other):
                return _apart(recorded.step, part, one, other)
        return None

    def _same(self, recorded: Any, played: Any) -> bool:
        if isinstance(recorded, str) and isinstance(played, float) and recorded in _FLOATS:
            recorded = float(recorded)
        return self._rules.same(recorded, played)

    def _end(self, outcome: Outcome | None, note: str) -> None:
        self._outcome, self._note = outcome, note


def _is_direct(recorded: Transition) -> bool:
    return recorded.step_arguments == DIRECT_CALL


def _apart(step: int, part: str, one: Any, other: Any) -> Divergence:
    return Divergence(step, part, Difference((), one, other))


def _beginning(episode: Episode) -> str:
    """Why it cannot be played from its beginning."""
    if episode.source is not None:
        source = episode.source
        return f"it goes on from step {source.get('step')} of session {source.get('session_id')}: a fork"
    return f"its record begins at step {episode.first_step}: an earlier file has the rest, or had it"
