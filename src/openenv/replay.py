"""Replay recorded episodes and compare each transition with its record."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from . import errors
from ._http import bearer, fetch
from .client import GenericEnvClient
from .client.endpoints import http_url, websocket_url
from .client.mcp_client import ask_session
from .mcp.types import DIRECT_CALL, McpMethod, observation_of
from .protocol.contract import Contract
from .recording.difference import ABSENT, SchemaNodes, ValueDifference, close, first_difference
from .recording.reader import Episode
from .recording.transition import Transition
from .types import StepResult

__all__ = [
    "Divergence",
    "ReplayOutcome",
    "ReplayPlayer",
    "ReplayResult",
    "ReplayRules",
    "ReplaySummary",
    "ReplayTarget",
    "ReplayedTransition",
    "app_target",
    "episode_chains",
    "replay",
    "results_of",
    "schemas_at",
    "server_target",
]


class ReplayOutcome(StrEnum):
    """How an episode compares with its record.

    SAME: every compared transition is equal. DIFFERENT: a transition differs. UNSEEDED: its reset had no seed, or its
    environment takes no seed, so a difference is not an error. INCOMPLETE: the record lacks its beginning.
    MISMATCHED: it was recorded with other schemas. FAILED: it could not be played or read, for a reason outside
    of the environment (a deadline, a lost connection, a missing array).
    """

    SAME = "same"
    DIFFERENT = "different"
    UNSEEDED = "unseeded"
    INCOMPLETE = "incomplete"
    MISMATCHED = "mismatched"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of an episode.

    Attributes:
        step: Number of the step; 0 is the reset.
        part: The part of the transition that differs: observation, reward, done, terminated, truncated or error.
        difference: Location in that part, and both values.
    """

    step: int
    part: str
    difference: ValueDifference

    @property
    def path(self) -> str:
        """The location in the record's line, such as `observation.board[3]`."""
        place = self.difference.place
        return self.part if not place else f"{self.part}{'' if place.startswith('[') else '.'}{place}"

    def sentence(self) -> str:
        """The difference in a sentence, with both values."""
        call = "the reset" if self.step == 0 else f"step {self.step}"
        whole = ValueDifference((self.path,), self.difference.one, self.difference.other)
        return f"{call}: {whole.sentence('recorded', 'played')}"

    def facts(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        values = {"recorded": self.difference.one, "played": self.difference.other}
        found = {name: value for name, value in values.items() if value is not ABSENT}
        return {"step": self.step, "path": self.path, **found}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of one episode.

    Attributes:
        episode_id, session_id, environment, seed: Values of the record.
        outcome: How the episode compares with its record.
        steps: Number of steps that were compared.
        divergence: The first difference; None unless the outcome is DIFFERENT.
        note: Why the episode was not compared, or not to its end; empty if it was.
    """

    episode_id: str
    session_id: str
    environment: str
    seed: int | None
    outcome: ReplayOutcome
    steps: int = 0
    divergence: Divergence | None = None
    note: str = ""

    def sentence(self) -> str:
        """The result in a sentence."""
        said = self.divergence.sentence() if self.divergence is not None else self.note
        seed = "" if self.seed is None else f" (seed {self.seed})"
        return f"episode {self.episode_id} of {self.environment}{seed}: {said or self.outcome.value}"

    def facts(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "episode_id": self.episode_id,
            "session_id": self.session_id,
            "environment": self.environment,
            "seed": self.seed,
            "outcome": str(self.outcome),
            "steps": self.steps,
            "difference": None if self.divergence is None else self.divergence.facts(),
            "note": self.note,
        }


# Most results that a report lists.
MOST_KEPT = 1000
_COMPARED = (ReplayOutcome.SAME, ReplayOutcome.DIFFERENT)
_WRONG = (ReplayOutcome.DIFFERENT, ReplayOutcome.MISMATCHED, ReplayOutcome.FAILED)
_WORDS = {
    ReplayOutcome.SAME: "the same",
    ReplayOutcome.DIFFERENT: "different",
    ReplayOutcome.UNSEEDED: "not compared, without a seed",
    ReplayOutcome.INCOMPLETE: "not compared, without a beginning",
    ReplayOutcome.MISMATCHED: "not compared, of other schemas",
    ReplayOutcome.FAILED: "failed",
}


class ReplaySummary:
    """Counts results, and keeps those with a difference or a note.

    Attributes:
        steps: Number of steps that were compared.
        kept: The first results with a difference or a note.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.kept: list[ReplayResult] = []
        self._counts: Counter[ReplayOutcome] = Counter()

    def add(self, result: ReplayResult) -> None:
        """Counts a result."""
        self._counts[result.outcome] += 1
        self.steps += result.steps
        if (result.note or result.divergence) and len(self.kept) < MOST_KEPT:
            self.kept.append(result)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return self._counts.total()

    @property
    def compared(self) -> int:
        """Number of episodes that were compared."""
        return sum(self._counts[outcome] for outcome in _COMPARED)

    @property
    def wrong(self) -> int:
        """Number of episodes that differ, or whose comparison failed."""
        return sum(self._counts[outcome] for outcome in _WRONG)

    def sentence(self) -> str:
        """The number of episodes by outcome, in a sentence."""
        return ", ".join(f"{self._counts[each]:,} {words}" for each, words in _WORDS.items() if self._counts[each])

    def facts(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "same": not self.wrong and bool(self.compared),
            "episodes": self.episodes,
            "steps": self.steps,
            "outcomes": {str(outcome): self._counts[outcome] for outcome in ReplayOutcome},
            "noted": [result.facts() for result in self.kept],
        }


ASK_S = 10.0
# Seconds to wait for a free slot: the server may have other clients.
WAIT_S = 30.0


class ReplayTarget:
    """The environment in which episodes are replayed.

    Args:
        name: Name in messages.
        schemas: Schemas of its types, as `GET /schema` returns them.
        contract: Contract of these schemas.
        sessions: Most sessions at a time; None if unknown.
        options: Options for its clients: `app`, or `base_url` with its options.

    Attributes:
        name: Name in messages.
        hash: Hash of the contract.
        sessions: Most sessions at a time; None if unknown.
    """

    def __init__(
        self,
        name: str,
        schemas: Mapping[str, Any],
        contract: Contract,
        sessions: int | None,
        **options: Any,
    ):
        self.name = name
        self.hash = contract.hash
        self.sessions = sessions
        self._options = options
        observation = schemas.get("observation")
        self._observations = SchemaNodes(schemas.get("reset_observation") or observation), SchemaNodes(observation)

    def client(self, timeout_s: float | None) -> GenericEnvClient:
        """A client with a separate session. `timeout_s` limits each call; None for no limit."""
        return GenericEnvClient(message_timeout_s=timeout_s, wait_s=WAIT_S, **self._options)

    async def aclose(self) -> None:
        """Closes an app in this process. A server by URL keeps running."""
        app = self._options.get("app")
        if app is not None:
            await app.state.openenv.aclose()

    def observation(self, step: int) -> SchemaNodes:
        """The schema of a step's observation; 0 is the reset."""
        return self._observations[bool(step)]

    def check(self, recorded: str | None, environment: str, versions: Mapping[str, Any]) -> None:
        """Checks that a record has the schemas of this environment.

        Args:
            recorded: Hash in the record. None, if the record has no hash, is accepted.
            environment: Name of the environment in the record.
            versions: Versions of openenv and of the environment in the record.

        Raises:
            SchemaMismatch: The hashes differ.
        """
        if recorded is None or recorded == self.hash:
            return
        version = versions.get("environment")
        was = f"{environment} {version}" if version else environment
        raise errors.SchemaMismatch(
            f"the record is of {was} with schemas {recorded} (openenv {versions.get('openenv') or 'unknown'}), and "
            f"{self.name} has schemas {self.hash}: play it against the version that it was recorded with (--target, "
            "--base-url), or record anew",
            data={"recorded": recorded, "played": self.hash, "environment": environment, "versions": dict(versions)},
        )


def app_target(target: str, app: Any) -> ReplayTarget:
    """The target for an app in this process, without a server or a socket.

    Raises:
        UsageError: The app is not from `create_app`, so it has no sessions.
    """
    server = getattr(getattr(app, "state", None), "openenv", None)
    if server is None:
        raise errors.UsageError(
            f"{target} is an app that create_app did not make: serve it, and give its address (--base-url)"
        )
    return ReplayTarget(target, server.schemas, server.contract, server.max_sessions, app=app)


def server_target(url: str, api_key: str | None) -> ReplayTarget:
    """The target for a running server.

    Raises:
        ConnectionLost: The server does not answer.
        Unauthorized: The server needs a valid API key.
        ProtocolViolation: The answer is not a JSON Schema.
    """
    schemas = schemas_at(url, api_key)
    try:
        contract = Contract(schemas)
    except ValueError as error:
        raise errors.ProtocolViolation(f"{url}/schema did not answer with a JSON Schema: {error}") from None
    return ReplayTarget(url, schemas, contract, None, base_url=url, api_key=api_key)


def schemas_at(url: str, api_key: str | None) -> dict[str, Any]:
    """The answer of a server's `GET /schema`. Raises the errors of `server_target`."""
    address = http_url(websocket_url(url))
    answer = fetch(f"{address}/schema", bearer(api_key), ASK_S)
    if answer.status in {401, 403}:
        raise errors.Unauthorized(f"{address} requires a valid API key: give it by --api-key")
    if answer.status != 200:
        raise errors.ProtocolViolation(
            f"{address}/schema answers with status {answer.status}: is an environment there?"
        )
    try:
        schemas = answer.json()
    except ValueError as error:
        raise errors.ProtocolViolation(f"{address}/schema did not answer with a JSON Schema: {error}") from None
    return schemas if isinstance(schemas, dict) else {}


# Errors that come from the environment, so that a replay repeats them. Others depend on the moment: a deadline, a
# killed process, a lost connection.
_OWN = {
    each.__name__
    for each in (
        errors.StepFailed,
        errors.RubricFailed,
        errors.ToolFailed,
        errors.InvalidAction,
        errors.ResetRequired,
    )
}
# Strings for the floats that JSON lacks.
_FLOATS = {"NaN", "Infinity", "-Infinity"}


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """How episodes are played and compared.

    Attributes:
        same: Compares two scalars.
        unseeded: Also play episodes that were reset without a seed.
        timeout_s: Limit for each call in seconds; None for no limit.
    """

    same: Callable[[Any, Any], bool] = close
    unseeded: bool = False
    timeout_s: float | None = 60.0


@dataclass(frozen=True, slots=True)
class ReplayedTransition:
    """One transition, recorded and replayed.

    Attributes:
        recorded: Transition in the record.
        played: Result of the replayed call; None if it failed.
        error: Error of the replayed call; None if it succeeded.
        divergence: The first difference; None if they are the same.
    """

    recorded: Transition
    played: StepResult[dict[str, Any]] | None
    error: errors.OpenEnvError | None
    divergence: Divergence | None


class ReplayPlayer:
    """Replays one episode.

    Args:
        episode: The recorded episode.
        target: Where to play it.
        rules: How to compare it.
        session: A session of the target, which the caller closes; None to open one. A session that played the
            previous episode continues its random numbers, so this episode needs no seed.
    """

    def __init__(
        self, episode: Episode, target: ReplayTarget, rules: ReplayRules, session: GenericEnvClient | None = None
    ):
        self._episode = episode
        self._target = target
        self._rules = rules
        self._session = session
        self._note = ""
        self._outcome: ReplayOutcome | None = None

    async def verdict(self, on_transition: Callable[[ReplayedTransition], None] | None = None) -> ReplayResult:
        """Plays up to the first difference, or to the end.

        Args:
            on_transition: Gets each transition. With it, the episode is always played to its end.
        """
        episode, steps = self._episode, 0
        first: Divergence | None = None
        try:
            async with aclosing(self._transitions()) as transitions:
                async for each in transitions:
                    first = first or each.divergence
                    if first is None:
                        steps = each.recorded.step
                    elif on_transition is None:
                        break
                    if on_transition is not None:
                        on_transition(each)
        except errors.SchemaMismatch as error:
            self._end(ReplayOutcome.MISMATCHED, error.message)
        except errors.UnreadableRecord as error:
            self._end(ReplayOutcome.FAILED, error.message)
        return ReplayResult(
            episode.episode_id,
            episode.session_id,
            episode.environment,
            episode.seed,
            ReplayOutcome.DIFFERENT if first is not None else self._outcome or ReplayOutcome.SAME,
            steps,
            first,
            self._note,
        )

    async def _transitions(self) -> AsyncGenerator[ReplayedTransition]:
        """Yields each transition, as far as the episode can be played.

        Raises:
            SchemaMismatch: The record was made with other schemas.
            UnreadableRecord: The record cannot be read to its end.
        """
        episode = self._episode
        if not episode.whole:
            why = f"its record begins at step {episode.first_step}: an earlier file may have the steps before it"
            if (source := episode.source) is not None:
                why = f"it is a fork of session {source.get('session_id')} at step {source.get('step')}"
            self._end(ReplayOutcome.INCOMPLETE, why)
            return
        self._target.check(episode.schema, episode.environment, episode.versions)
        client = self._session or self._target.client(self._rules.timeout_s)
        try:
            for number, recorded in enumerate(episode.transitions()):
                if self._stops_before(recorded, number):
                    return
                result, error = await self._call(client, recorded)
                if error is not None and type(error).__name__ not in _OWN:
                    why = f"step {number} could not be played: {type(error).__name__}: {error.message}"
                    self._end(ReplayOutcome.FAILED, why)
                    return
                seedable = result is None or (result.metadata or {}).get("seedable")
                if recorded.step == 0 and seedable is False and not self._rules.unseeded:
                    why = "its environment takes no seed, so a repeat may differ"
                    self._end(ReplayOutcome.UNSEEDED, why)
                    return
                yield ReplayedTransition(recorded, result, error, self._divergence(recorded, result, error))
        finally:
            if self._session is None:
                await client.close()

    def _stops_before(self, recorded: Transition, number: int) -> bool:
        """Whether the comparison must stop before this transition. Writes the note that says why."""
        seeded = recorded.seed is not None or (recorded.arguments or {}).get("seed") is not None
        seeded = seeded or (self._session is not None and self._episode.continues)
        if number == 0 and not seeded and not self._rules.unseeded:
            self._end(ReplayOutcome.UNSEEDED, "it was reset without a seed, so a repeat may differ")
        elif recorded.step != number:
            self._end(None, f"compared up to step {number - 1}: the record lacks step {number}")
        elif recorded.error_class and recorded.error_class not in _OWN:
            self._end(None, f"compared up to step {number - 1}: then {recorded.error_class} was recorded")
        elif recorded.step_arguments and recorded.step_arguments != DIRECT_CALL:
            self._end(None, f"compared up to step {number - 1}: the next step has arguments beside its action (HTTP)")
        return bool(self._note)

    async def _call(
        self, client: GenericEnvClient, recorded: Transition
    ) -> tuple[StepResult[dict[str, Any]] | None, errors.OpenEnvError | None]:
        """Repeats the recorded call: a step, a direct tool call, or the reset."""
        try:
            if recorded.step_arguments == DIRECT_CALL:
                name, arguments = recorded.action["tool_name"], recorded.action["arguments"]
                params = {"name": name, "arguments": arguments}
                found = await ask_session(client, McpMethod.TOOLS_CALL, params, self._rules.timeout_s)
                return StepResult(observation=observation_of(name, found)), None
            if recorded.step:
                return await client.step(recorded.action), None
            arguments = dict(recorded.arguments or {})
            if recorded.seed is not None:
                arguments["seed"] = recorded.seed
            # Only an id from the client, not one that the recorder made.
            if not self._episode.episode_id.startswith(f"{self._episode.session_id}-"):
                arguments.setdefault("episode_id", self._episode.episode_id)
            return await client.reset(**arguments), None
        except errors.OpenEnvError as error:
            return None, error

    def _divergence(
        self, recorded: Transition, played: StepResult[dict[str, Any]] | None, error: errors.OpenEnvError | None
    ) -> Divergence | None:
        was, now = recorded.error_class, None if error is None else type(error).__name__
        # Some records lack the error's class.
        if was != now and not (was == "" and now):
            said = None if error is None else f"{now}: {error.message}"
            return Divergence(recorded.step, "error", ValueDifference((), recorded.error, said))
        if played is None:
            return None
        schema = self._target.observation(recorded.step)
        found = first_difference(recorded.observation, played.observation, schema, self._same)
        if found is not None:
            return Divergence(recorded.step, "observation", found)
        for part in ("reward", "done", "terminated", "truncated"):
            one, other = getattr(recorded, part), getattr(played, part)
            # Some servers do not report how an episode ended.
            unsaid = one is None and part in {"terminated", "truncated"}
            if not unsaid and not self._same(one, other):
                return Divergence(recorded.step, part, ValueDifference((), one, other))
        return None

    def _same(self, recorded: Any, played: Any) -> bool:
        if isinstance(recorded, str) and isinstance(played, float) and recorded in _FLOATS:
            recorded = float(recorded)
        return self._rules.same(recorded, played)

    def _end(self, outcome: ReplayOutcome | None, note: str) -> None:
        self._outcome, self._note = outcome, note


def episode_chains(episodes: Iterator[Episode]) -> Iterator[list[Episode]]:
    """Groups episodes that continue one another into lists; most lists have one episode."""
    waiting: dict[str, list[Episode]] = {}
    for episode in episodes:
        chain = waiting.pop(episode.session_id, [])
        if chain and not episode.continues:  # the episode between them was filtered out
            yield chain
            chain = []
        chain.append(episode)
        if episode.continued:
            waiting[episode.session_id] = chain
        else:
            yield chain
    yield from waiting.values()


# Repeats of an episode without a seed before a difference counts as the environment's. They end with the first one
# that differs. Eight throws of a coin are the same once in 256 times, and those of a die once in 1.7 million.
CONFIRMATIONS = 8


async def results_of(
    chain: Sequence[Episode],
    target: ReplayTarget,
    rules: ReplayRules,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    on_transition: Callable[[ReplayedTransition], None] | None = None,
) -> AsyncGenerator[ReplayResult]:
    """Plays episodes that continue one another in one session.

    An environment may draw new random numbers in a reset without a seed. A difference in such an episode counts only
    if every repeat of the chain shows it.

    Args:
        chain: The episodes in order.
        target: Where to play them.
        rules: How to compare them.
        on_episode: Called before each episode.
        on_transition: Gets each transition, as in `ReplayPlayer.verdict`.
    """
    session = target.client(rules.timeout_s) if len(chain) > 1 else None
    forced = replace(rules, unseeded=True)
    try:
        for number, episode in enumerate(chain):
            on_episode(episode)
            result = await ReplayPlayer(episode, target, rules, session).verdict(on_transition)
            if result.divergence is not None and number and session is not None and not rules.unseeded:
                for _ in range(CONFIRMATIONS):
                    played = results_of(chain[: number + 1], target, forced)
                    again = [each async for each in played][-1]
                    if again.sentence() != result.sentence():
                        note = "it was reset without a seed, and its environment then draws new random numbers"
                        result = replace(result, outcome=ReplayOutcome.UNSEEDED, divergence=None, note=note, steps=0)
                        break
            yield result
            if (result.outcome is not ReplayOutcome.SAME or result.note) and session is not None:
                await session.close()
                session = None
    finally:
        if session is not None:
            await session.close()


async def replay(
    episodes: Iterator[Episode],
    target_of: Callable[[Episode], ReplayTarget],
    rules: ReplayRules,
    sessions: int,
    on_result: Callable[[ReplayResult], None],
) -> None:
    """Replays episodes concurrently, each chain of episodes that continue one another in one session.

    It may be cancelled at any time, and closes its sessions then.

    Args:
        episodes: The episodes, read as they are played, and ahead only to the end of the current chain.
        target_of: Returns where to play an episode.
        rules: How to compare them.
        sessions: Number of sessions at a time.
        on_result: Gets each result as soon as it is known.

    Raises:
        OpenEnvError: The records or the target cannot be used. Errors of an episode are in its result.
    """
    reading, chains = asyncio.Lock(), episode_chains(episodes)

    async def play() -> None:
        while True:
            async with reading:
                chain = await asyncio.to_thread(next, chains, None)
            if chain is None:
                return
            async for result in results_of(chain, target_of(chain[0]), rules):
                on_result(result)

    try:
        with warnings.catch_warnings():
            # Each result reports it.
            warnings.simplefilter("ignore", errors.SeedIgnored)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(sessions):
                    tasks.create_task(play())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
