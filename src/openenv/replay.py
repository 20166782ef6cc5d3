"""Play recorded episodes again and compare each transition with its record."""

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

    SAME: nothing differs, as far as it could be compared. DIFFERENT: something does. UNSEEDED: it was reset without a
    seed, or its environment takes none, so it need not be the same. INCOMPLETE: the record lacks its beginning.
    MISMATCHED: it was recorded with other schemas. FAILED: it could not be played or read, for a reason that is none
    of the environment's (a deadline, a lost connection, a missing array).
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
        step: 0 is the reset.
        part: What of the transition differs: observation, reward, done, terminated, truncated or error.
        difference: Where in it, and both values.
    """

    step: int
    part: str
    difference: ValueDifference

    @property
    def path(self) -> str:
        """Where it is in the line of the record: `observation.board[3]`."""
        place = self.difference.place
        return self.part if not place else f"{self.part}{'' if place.startswith('[') else '.'}{place}"

    def sentence(self) -> str:
        """In words, with both values."""
        call = "the reset" if self.step == 0 else f"step {self.step}"
        whole = ValueDifference((self.path,), self.difference.one, self.difference.other)
        return f"{call}: {whole.sentence('recorded', 'played')}"

    def facts(self) -> dict[str, Any]:
        """As `--json` has it."""
        values = {"recorded": self.difference.one, "played": self.difference.other}
        found = {name: value for name, value in values.items() if value is not ABSENT}
        return {"step": self.step, "path": self.path, **found}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of one episode.

    Attributes:
        episode_id, session_id, environment, seed: Of the record.
        outcome: How it compares.
        steps: How many of its steps were compared.
        divergence: The first difference of a DIFFERENT one.
        note: Why it was not compared, or not to its end; empty if it was.
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
        """In words."""
        said = self.divergence.sentence() if self.divergence is not None else self.note
        seed = "" if self.seed is None else f" (seed {self.seed})"
        return f"episode {self.episode_id} of {self.environment}{seed}: {said or self.outcome.value}"

    def facts(self) -> dict[str, Any]:
        """As `--json` has it."""
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


# A report of more would not be read.
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
    """Counts results, and keeps those that say more than `same`.

    Attributes:
        steps: Steps that were compared.
        kept: The first results with a difference or a note.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.kept: list[ReplayResult] = []
        self._counts: Counter[ReplayOutcome] = Counter()

    def add(self, result: ReplayResult) -> None:
        """One more."""
        self._counts[result.outcome] += 1
        self.steps += result.steps
        if (result.note or result.divergence) and len(self.kept) < MOST_KEPT:
            self.kept.append(result)

    @property
    def episodes(self) -> int:
        """How many there were."""
        return self._counts.total()

    @property
    def compared(self) -> int:
        """How many were compared."""
        return sum(self._counts[outcome] for outcome in _COMPARED)

    @property
    def wrong(self) -> int:
        """How many differ, or could not be compared though they should."""
        return sum(self._counts[outcome] for outcome in _WRONG)

    def sentence(self) -> str:
        """How many came out how."""
        return ", ".join(f"{self._counts[each]:,} {words}" for each, words in _WORDS.items() if self._counts[each])

    def facts(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "same": not self.wrong and bool(self.compared),
            "episodes": self.episodes,
            "steps": self.steps,
            "outcomes": {str(outcome): self._counts[outcome] for outcome in ReplayOutcome},
            "noted": [result.facts() for result in self.kept],
        }


ASK_S = 10.0
# The server may have other clients, which take slots too.
WAIT_S = 30.0


class ReplayTarget:
    """An environment to play in.

    Args:
        name: What messages call it.
        schemas: Of its types, as `GET /schema` has them.
        contract: Of the same.
        sessions: How many it has room for; None: unknown.
        options: Of its clients: `app`, or `base_url` and what goes with it.

    Attributes:
        name: What messages call it.
        hash: Of its contract.
        sessions: How many it has room for; None: unknown.
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
        observation = SchemaNodes(schemas.get("observation"))
        self._observations = (
            SchemaNodes(schemas.get("reset_observation") or schemas.get("observation")),
            observation,
        )

    def client(self, timeout_s: float | None) -> GenericEnvClient:
        """A client of a session of its own, each call of which may take so many seconds."""
        return GenericEnvClient(message_timeout_s=timeout_s, wait_s=WAIT_S, **self._options)

    async def aclose(self) -> None:
        """Ends what was begun in this process; a server that runs is none of that."""
        app = self._options.get("app")
        if app is not None:
            await app.state.openenv.aclose()

    def observation(self, step: int) -> SchemaNodes:
        """What is said of the observation of a step; 0 is the reset."""
        return self._observations[bool(step)]

    def check(self, recorded: str | None, environment: str, versions: Mapping[str, Any]) -> None:
        """Whether a record was made with the schemas of this environment.

        Args:
            recorded: Hash of the record's; None: it says nothing, which is accepted.
            environment: Name of the record's.
            versions: Of openenv and of the environment, as the record has them.

        Raises:
            SchemaMismatch: They are others.
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
    """An app in this process: no server, no socket.

    Raises:
        UsageError: `create_app` did not make it, so it has no sessions.
    """
    server = getattr(getattr(app, "state", None), "openenv", None)
    if server is None:
        raise errors.UsageError(
            f"{target} is an app that create_app did not make: serve it, and give its address (--base-url)"
        )
    return ReplayTarget(target, server.schemas, server.contract, server.max_sessions, app=app)


def server_target(url: str, api_key: str | None) -> ReplayTarget:
    """A server that runs.

    Raises:
        ConnectionLost: It does not answer.
        Unauthorized: It wants another key.
        ProtocolViolation: It did not return a JSON Schema.
    """
    schemas = schemas_at(url, api_key)
    try:
        contract = Contract(schemas)
    except ValueError as error:
        raise errors.ProtocolViolation(f"{url}/schema answers what is no schema: {error}") from None
    return ReplayTarget(url, schemas, contract, None, base_url=url, api_key=api_key)


def schemas_at(url: str, api_key: str | None) -> dict[str, Any]:
    """What `GET /schema` of a server answers. Raises as `server_target`."""
    address = http_url(websocket_url(url))
    answer = fetch(f"{address}/schema", bearer(api_key), ASK_S)
    if answer.status in {401, 403}:
        raise errors.Unauthorized(f"{address} wants another key, or one at all: give it by --api-key")
    if answer.status != 200:
        raise errors.ProtocolViolation(
            f"{address}/schema answers with status {answer.status}: is an environment there?"
        )
    try:
        schemas = answer.json()
    except ValueError as error:
        raise errors.ProtocolViolation(f"{address}/schema answers what is no schema: {error}") from None
    return schemas if isinstance(schemas, dict) else {}


# What an environment answers by itself, so that it answers it again. The others are of the moment: a deadline, a
# process that was killed, a connection.
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
# How records write floats that JSON does not have.
_FLOATS = {"NaN", "Infinity", "-Infinity"}


@dataclass(frozen=True, slots=True)
class ReplayRules:
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
class ReplayedTransition:
    """One transition, as it was and as it is.

    Attributes:
        recorded: From the record.
        played: What came of the same call; None where it failed.
        error: How it failed.
        divergence: The first difference; None: they are the same.
    """

    recorded: Transition
    played: StepResult[dict[str, Any]] | None
    error: errors.OpenEnvError | None
    divergence: Divergence | None


class ReplayPlayer:
    """Plays one episode.

    Args:
        episode: The record.
        target: Where to play.
        rules: How to compare.
        session: A session of the target, which the caller closes; None: the player opens one. A session that played
            the episode before it goes on with its random numbers, so this one needs no seed.
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
        """Plays until something differs, or to the end.

        Args:
            on_transition: Gets each transition; with it, the episode is played to its end in any case.
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
        """Each transition, as far as the episode can be played.

        Raises:
            SchemaMismatch: The record was made with other schemas.
            UnreadableRecord: It cannot be read to its end.
        """
        episode = self._episode
        if not episode.whole:
            why = f"its record begins at step {episode.first_step}: an earlier file has the rest, or had it"
            if (source := episode.source) is not None:
                why = f"it goes on from step {source.get('step')} of session {source.get('session_id')}: a fork"
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
                    why = "its environment takes no seed, so it need not be the same"
                    self._end(ReplayOutcome.UNSEEDED, why)
                    return
                yield ReplayedTransition(recorded, result, error, self._divergence(recorded, result, error))
        finally:
            if self._session is None:
                await client.close()

    def _stops_before(self, recorded: Transition, number: int) -> bool:
        """Whether the record cannot be compared from this transition on, for which there is a note then."""
        seeded = recorded.seed is not None or (recorded.arguments or {}).get("seed") is not None
        seeded = seeded or (self._session is not None and self._episode.continues)
        if number == 0 and not seeded and not self._rules.unseeded:
            self._end(ReplayOutcome.UNSEEDED, "it was reset without a seed, so it need not be the same")
        elif recorded.step != number:
            self._end(None, f"compared up to step {number - 1}: the record lacks step {number}")
        elif recorded.error_class and recorded.error_class not in _OWN:
            self._end(None, f"compared up to step {number - 1}: then {recorded.error_class} was recorded")
        elif recorded.step_arguments and not _is_direct(recorded):
            self._end(None, f"compared up to step {number - 1}: the next had arguments beside its action (HTTP)")
        return bool(self._note)

    async def _call(
        self, client: GenericEnvClient, recorded: Transition
    ) -> tuple[StepResult[dict[str, Any]] | None, errors.OpenEnvError | None]:
        """Does what was recorded: a step, a tool call that is no step, or the reset."""
        try:
            if _is_direct(recorded):
                name, arguments = recorded.action["tool_name"], recorded.action["arguments"]
                params = {"name": name, "arguments": arguments}
                found = await ask_session(client, McpMethod.TOOLS_CALL, params, self._rules.timeout_s)
                return StepResult(observation=observation_of(name, found)), None
            if recorded.step:
                return await client.step(recorded.action), None
            arguments = dict(recorded.arguments or {})
            if recorded.seed is not None:
                arguments["seed"] = recorded.seed
            # One that its client gave, and no name that the recorder made.
            if not self._episode.episode_id.startswith(f"{self._episode.session_id}-"):
                arguments.setdefault("episode_id", self._episode.episode_id)
            return await client.reset(**arguments), None
        except errors.OpenEnvError as error:
            return None, error

    def _divergence(
        self, recorded: Transition, played: StepResult[dict[str, Any]] | None, error: errors.OpenEnvError | None
    ) -> Divergence | None:
        was, now = recorded.error_class, None if error is None else type(error).__name__
        # Not every record says of which class an error was.
        if was != now and not (was == "" and now):
            said = None if error is None else f"{now}: {error.message}"
            return _divergence_in(recorded.step, "error", recorded.error, said)
        if played is None:
            return None
        schema = self._target.observation(recorded.step)
        found = first_difference(recorded.observation, played.observation, schema, self._same)
        if found is not None:
            return Divergence(recorded.step, "observation", found)
        for part in ("reward", "done", "terminated", "truncated"):
            one, other = getattr(recorded, part), getattr(played, part)
            # Not every server says how an episode has ended.
            unsaid = one is None and part in {"terminated", "truncated"}
            if not unsaid and not self._same(one, other):
                return _divergence_in(recorded.step, part, one, other)
        return None

    def _same(self, recorded: Any, played: Any) -> bool:
        if isinstance(recorded, str) and isinstance(played, float) and recorded in _FLOATS:
            recorded = float(recorded)
        return self._rules.same(recorded, played)

    def _end(self, outcome: ReplayOutcome | None, note: str) -> None:
        self._outcome, self._note = outcome, note


def _is_direct(recorded: Transition) -> bool:
    return recorded.step_arguments == DIRECT_CALL


def _divergence_in(step: int, part: str, one: Any, other: Any) -> Divergence:
    return Divergence(step, part, ValueDifference((), one, other))


def episode_chains(episodes: Iterator[Episode]) -> Iterator[list[Episode]]:
    """The episodes in lists of those that continue one another; most are alone in theirs."""
    waiting: dict[str, list[Episode]] = {}
    for episode in episodes:
        chain = waiting.pop(episode.session_id, [])
        if chain and not episode.continues:  # the one between them was left out
            yield chain
            chain = []
        chain.append(episode)
        if episode.continued:
            waiting[episode.session_id] = chain
        else:
            yield chain
    yield from waiting.values()


# How often an episode without a seed is played again before a difference counts as the environment's.
CONFIRMATIONS = 2


async def results_of(
    chain: Sequence[Episode],
    target: ReplayTarget,
    rules: ReplayRules,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    on_transition: Callable[[ReplayedTransition], None] | None = None,
) -> AsyncGenerator[ReplayResult]:
    """Plays episodes that continue one another in one session.

    An environment may draw new random numbers in a reset without a seed. A difference in such an episode counts only
    if it is there each time that the chain is played.

    Args:
        chain: The episodes in their order.
        target: Where they are played.
        rules: How they are compared.
        on_episode: Called before each episode.
        on_transition: As for `ReplayPlayer.verdict`.
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
                        note = "it was reset without a seed, and its environment draws anew then"
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
    """Plays episodes, so many at a time, each in a session of its own, and those that continue one another in one.

    May be cancelled at any time; no session is left then.

    Args:
        episodes: Read as they are played, and no further ahead than to the last that continues them.
        target_of: Where an episode is played.
        rules: How it is compared.
        sessions: How many are played at a time.
        on_result: Gets each result when it is there.

    Raises:
        OpenEnvError: Of the records or of the place: what an episode does is in its result.
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
            # The result says so of each episode.
            warnings.simplefilter("ignore", errors.SeedIgnored)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(sessions):
                    tasks.create_task(play())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
