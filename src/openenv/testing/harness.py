"""The environment under test, served in this process without a socket, its sessions, and actions to play."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import providers
from ..client import GenericEnvClient
from ..environment import Environment
from ..errors import InvalidAction, OpenEnvError, StepFailed, StepTimeout
from ..protocol.arrays import is_array, list_of
from ..protocol.json_schema import schema_of
from ..runtime.manager import opened_session, result_of
from ..runtime.profile import Execution, profile_of
from ..types import StepResult
from .check import CheckFailure, CheckSkip
from .schemas import NoValue, SchemaValues

COUNT = 24
ATTEMPTS = 200
# Fields of all actions, which are not generated.
BESIDE = frozenset({"metadata"})
LONG_TEXT = 2000


class Repertoire:
    """The actions of one environment.

    Args:
        server: Its server.
        given: Actions from the environment's author, for tests.
        offered: Actions that it offers (`web_actions`).
        tools: Its tools from `list_tools`. None if it has no tools.

    Raises:
        CheckSkip: No action can be generated.

    Attributes:
        actions: Actions to play. Some are repeated, so that there are enough.
        source: Description of their origin.
    """

    def __init__(
        self,
        server: Any,
        given: Sequence[Mapping[str, Any]] | None,
        offered: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ):
        self._server = server
        self._schema: dict[str, Any] = schema_of(server.action_cls) or {}
        examples = [each for each in self._schema.get("examples", ()) if isinstance(each, dict)]
        if given:
            self.source, found = "actions()", [dict(each) for each in given]
        elif examples:
            self.source, found = "the examples of the action's schema", examples
        elif offered:
            self.source, found = "web_actions", [dict(each) for each in offered]
        elif tools is not None:
            self.source, found = "the schemas of its tools", self._calls(tools)
        else:
            self.source, found = "the action's schema", self._made(self._schema)
        self.actions = (found * COUNT)[: max(COUNT, len(found))]
        self.chosen = self.source in {"actions()", "web_actions"}

    @staticmethod
    def takes_tools(server: Any) -> bool:
        """Whether the actions of the environment are tool calls."""
        return '"call_tool"' in json.dumps(schema_of(server.action_type) or {})

    def accepts(self, action: Any) -> bool:
        """Whether an action is valid for the server."""
        try:
            self._server.read_action(action)
        except InvalidAction:
            return False
        return True

    def wrong(self) -> list[Any]:
        """Invalid actions, each with a different error."""
        good = self.actions[0]
        wrong: list[Any] = [{**good, "no_such_field": 1}, {}]
        wrong += [{key: each for key, each in good.items() if key != name} for name in good]
        wrong += [{**good, name: ["no", {"such": "value"}]} for name in good]
        wrong += [{**good, name: None} for name in good]
        return [each for number, each in enumerate(wrong) if each not in wrong[:number] and not self.accepts(each)]

    def edges(self) -> list[dict[str, Any]]:
        """Actions at the limits of the schema."""
        good = self.actions[0]
        made = []
        for name, part in self._schema.get("properties", {}).items():
            if name in BESIDE or part.keys() & {"examples", "enum", "const"}:
                continue
            kind, values = part.get("type"), list[Any]()
            if kind == "string":
                texts = ["", "a\u00e9\u4f60\U0001f600", "x" * min(LONG_TEXT, int(part.get("maxLength", LONG_TEXT)))]
                values = [text for text in texts if len(text) >= int(part.get("minLength", 0))]
            elif kind in {"integer", "number"}:
                values = [part[key] for key in ("minimum", "maximum") if key in part]
                for word, value in (("inimum", -1), ("aximum", 1000)) if kind == "integer" else ():
                    values += [] if any(word in key for key in part) else [value]
            elif kind == "array":
                values = [[]]
            made += [{**good, name: value} for value in values]
        return [each for each in made if self.accepts(each)]

    def _calls(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if not tools:
            raise CheckSkip("the environment has no tools to call: declare some")
        made = []
        for seed in range(3):
            for tool in tools:
                schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"}
                try:
                    arguments = SchemaValues(schema, seed).value()
                except NoValue as reason:
                    raise CheckSkip(f"no call of the tool {tool.get('name')} can be generated: {reason}") from None
                made.append({"type": "call_tool", "tool_name": tool["name"], "arguments": arguments})
        return made

    def _made(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        if not schema:
            raise CheckSkip(
                f"no action can be generated, since {self._server.action_cls!r} has no JSON Schema; {HINT}"
            )
        values = SchemaValues(schema, 1, BESIDE)
        found = []
        try:
            for _ in range(ATTEMPTS):
                value = values.value()
                if isinstance(value, dict) and self.accepts(value):
                    found.append(value)
                if len(found) == COUNT:
                    break
        except NoValue as reason:
            raise CheckSkip(f"no action can be generated from its schema: {reason}; {HINT}") from None
        if not found:
            raise CheckSkip(f"the server accepted none of {ATTEMPTS} actions generated from the schema; {HINT}")
        return found


HINT = (
    "give examples in the action's schema (json_schema_extra), return some from web_actions, or return them from "
    "EnvironmentConformance.actions()"
)


def offered(environment: Any, _: None) -> Any:
    """Resets an environment and returns the actions that it offers."""
    inherited = getattr(type(environment), "web_actions", None) is Environment.web_actions
    if inherited or not callable(getattr(environment, "web_actions", None)):
        return []
    observation = profile_of(type(environment)).reset(environment, {})

    def actions_after(observation: Any) -> list[dict[str, Any]]:
        return [dict(action) for _, action in environment.web_actions(observation)]

    async def actions_later() -> list[dict[str, Any]]:
        return actions_after(await observation)

    return actions_later() if inspect.isawaitable(observation) else actions_after(observation)


# Id of episodes that are compared.
EPISODE = "probe"
STEPS = 12
SAMPLES = 3
# Calls' worth of time that a session may need to open and to close, in addition to its calls.
GLANCE_S = 0.005
# Time limit of the first session, as a multiple of that of a call: it creates the shared resources.
OPENING = 3


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """The constants of an environment.

    Attributes:
        name: Name of its class.
        execution: Where its code runs.
        seedable: False if its reset has no argument `seed`.
        offered: The actions that it offers after a reset.
    """

    name: str
    execution: Execution
    seedable: bool
    offered: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of one call.

    Attributes:
        call: The call as text: `reset(seed=1)`, `step 2 ({"message": "hi"})`.
        reset: Whether it was a reset.
        observation: All of its fields, as sent to clients in JSON.
        error: The error, if the call failed.
    """

    call: str
    reset: bool
    observation: dict[str, Any] = field(default_factory=dict)
    reward: Any = None
    done: bool = False
    truncated: bool = False
    error: OpenEnvError | None = None

    @property
    def failure(self) -> OpenEnvError | None:
        """The error of the environment. None if the call succeeded, but its answer cannot be sent."""
        text = "" if self.error is None else self.error.message
        cannot_be_sent = (
            text.startswith("the reward is ")
            or " cannot be written as " in text
            or "cannot be sent, since reading it raised" in text
        )
        return None if cannot_be_sent else self.error


class EpisodePlayer:
    """Plays one session through a client. An error of a reset or step is part of its outcome.

    Args:
        client: Its client.
        seedable: Whether reset takes a seed.
    """

    def __init__(self, client: GenericEnvClient, seedable: bool):
        self.client = client
        self._seedable = seedable
        self._steps = 0

    async def reset(self, seed: int | None = None, episode_id: str | None = EPISODE) -> CallOutcome:
        """Starts an episode."""
        arguments: dict[str, Any] = {} if episode_id is None else {"episode_id": episode_id}
        if seed is not None and self._seedable:
            arguments["seed"] = seed
        self._steps = 0
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != EPISODE)
        return await _outcome_of(f"reset({said})", True, self.client.reset(**arguments))

    async def step(self, action: Mapping[str, Any], timeout_s: float | None = None) -> CallOutcome:
        """Executes an action."""
        self._steps += 1
        call = self.client.step(dict(action), timeout_s=timeout_s)
        return await _outcome_of(f"step {self._steps} ({action})", False, call)

    async def play(
        self, actions: Sequence[Mapping[str, Any]], seed: int | None = None, limit_s: float | None = None
    ) -> list[CallOutcome]:
        """Plays an episode to its end, or until there are no more actions, or for some seconds.

        An error that ends the session ends the episode.

        Raises:
            CheckFailure: A step did not return in time.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        await asyncio.sleep(0)  # inline environments never yield: let other tasks run
        seen = [await self.reset(seed)]
        if seen[0].failure is not None:
            return seen
        for action in actions:
            seen.append(await self.step(action))
            error = seen[-1].error
            if isinstance(error, StepTimeout):
                raise CheckFailure(
                    f"{seen[-1].call} did not return: {error.message}.",
                    "make every step return, with a timeout if needed",
                )
            if error is not None and not isinstance(error, StepFailed) and error.blame != "client":
                break  # the session is lost
            if seen[-1].done or (until is not None and time.monotonic() > until):
                break
        return seen


class ConformanceHarness:
    """An environment under test.

    Args:
        app: An app from `create_app`, or an `Environment` class.
        call_s: Maximum of seconds for one call.
        sessions: Number of concurrent sessions.
        episodes: Number of episodes that are played to measure the growth of memory.
        actions: Actions to play. None for those that the environment offers, or that its schema allows.

    Raises:
        CheckSkip: The app was not made by `create_app`, so it cannot be played in this process.

    Attributes:
        given: The given actions.
        stuck: Whether the close of an environment did not return.
        scorer: The `EpisodeScorer` of semantic checks; None before the first of them.
    """

    def __init__(
        self,
        app: Any,
        *,
        call_s: float = 10.0,
        sessions: int = 64,
        episodes: int = 1000,
        actions: Sequence[Mapping[str, Any]] | None = None,
    ):
        self.app = providers.app_in_process(app) if isinstance(app, type) and issubclass(app, Environment) else app
        self.server: Any = getattr(getattr(self.app, "state", None), "openenv", None)
        if self.server is None:
            raise CheckSkip("the app was not made by create_app: serve it, and check it by its address (--url)")
        self.call_s = call_s
        self.sessions = sessions
        self.episodes = episodes
        self.given = actions
        self.stuck = False
        self.scorer: Any = None
        self._leaving: set[asyncio.Future[None]] = set()
        self._playing = 0
        self._facts: EnvironmentFacts | None = None
        self._repertoire: Repertoire | None = None
        self._sample: list[CallOutcome] | None = None

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[EpisodePlayer]:
        """A session for a block. At its end, waits for the close of the environment, with a time limit."""
        facts = await self.facts()
        self._playing += 1
        client = self.client()
        try:
            yield EpisodePlayer(client, facts.seedable)
        finally:
            self._playing -= 1
            await self.leave(client)
        await self.quiet(self._playing)

    def client(self) -> GenericEnvClient:
        """A client with its own session."""
        return GenericEnvClient(app=self.app, message_timeout_s=self.call_s, wait_s=self.call_s)

    async def leave(self, *clients: GenericEnvClient) -> None:
        """Closes clients, with a time limit."""
        self._leaving |= {asyncio.ensure_future(client.close()) for client in clients}
        if not self.stuck:
            _, self._leaving = await asyncio.wait(self._leaving, timeout=self.call_s)
            self.stuck = bool(self._leaving)

    async def quiet(self, sessions: int = 0) -> None:
        """Waits until at most `sessions` environments are open. After a timeout, no further call waits."""
        until = time.monotonic() + self.call_s
        while self.server.active_sessions > sessions and not self.stuck:
            await asyncio.sleep(GLANCE_S)
            self.stuck = time.monotonic() > until

    async def facts(self) -> EnvironmentFacts:
        """Its constants; opens a session to read them.

        Raises:
            CheckSkip: The episodes of this batch step together, so it has no sessions of one episode.
            OpenEnvError: The session did not open.
        """
        batch = self.server.batch
        if batch is not None and not batch.is_shared:
            raise CheckSkip("single sessions are refused, since the episodes of the batch start and step together")
        if self._facts is None:
            await self.quiet()
            opening = asyncio.timeout(OPENING * self.call_s)
            async with opening, opened_session(self.server.manager) as session:
                profile = session.profile
                assert profile is not None
                seedable, actions = profile.seedable, []
                if seedable:
                    with contextlib.suppress(OpenEnvError):  # get_metadata may raise: other checks see it
                        metadata = await result_of(lambda done: session.call(_metadata, None, done))
                        seedable = getattr(metadata, "seedable", None) is not False
                if profile.execution is not Execution.PROCESS or session.executor is not None:
                    with contextlib.suppress(OpenEnvError):
                        actions = await result_of(lambda done: session.call(offered, None, done))
            self._facts = EnvironmentFacts(profile.name, profile.execution, seedable, actions)
            await self.quiet()
        return self._facts

    async def actions(self) -> list[dict[str, Any]]:
        """Actions to play, some of them repeated.

        Raises:
            CheckSkip: No action can be generated.
        """
        return [*(await self.repertoire()).actions]

    async def repertoire(self) -> Repertoire:
        """The repertoire of the environment. Raises as `actions` does."""
        if self._repertoire is None:
            facts = await self.facts()
            tools = None
            if Repertoire.takes_tools(self.server):
                async with self.session() as player:
                    await player.client.reset(episode_id=EPISODE)
                    tools = (await player.client.step({"type": "list_tools"})).observation.get("tools", [])
            self._repertoire = Repertoire(self.server, self.given, facts.offered, tools)
        return self._repertoire

    async def sample(self) -> list[CallOutcome]:
        """The calls of some episodes, each in its own session. Later calls return the same ones."""
        if self._sample is None:
            actions = await self.actions()
            sample: list[CallOutcome] = []
            for number in range(SAMPLES):
                async with self.session() as player:
                    turned = actions[number:] + actions[:number]
                    sample += await player.play(turned[:STEPS], number, self.call_s / SAMPLES)
            self._sample = sample
        return self._sample


def _metadata(environment: Any, _: None) -> Any:
    return environment.get_metadata() if hasattr(environment, "get_metadata") else None


async def _outcome_of(call: str, reset: bool, answer: Awaitable[StepResult[dict[str, Any]]]) -> CallOutcome:
    try:
        result = await answer
    except OpenEnvError as error:
        return CallOutcome(call, reset, error=error)
    return CallOutcome(call, reset, _listed(result.observation), result.reward, result.done, result.truncated)


def _listed(value: Any) -> Any:
    """A value with its arrays as nested lists, as JSON clients get them and schemas describe them."""
    if isinstance(value, (int, float, str)):  # first, since a list has thousands of them
        return value
    if is_array(value):
        return list_of(value)
    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, list) else value
