"""Where an environment plays for its probes: served as it will be, in this process, without a socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..client import GenericEnvClient
from ..environment import Environment
from ..errors import OpenEnvError, StepFailed, StepTimeout
from ..execution import Execution
from ..launch import app_in_process
from ..sessions.waiting import opened_session, result_of
from ..types import StepResult
from .probe import CannotTell, Fault
from .repertoire import Repertoire, offered

__all__ = ["EPISODE", "Facts", "Player", "Seen", "Stage", "unsendable"]

# The name given to episodes that are compared.
EPISODE = "probe"
STEPS = 12
SAMPLES = 3
# What a session may need beyond the calls that are made in it, to open and to close.
GLANCE_S = 0.005
# The first session of all may take so many times what a call may: what is made once is made for it.
OPENING = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """What is constant for an environment.

    Attributes:
        name: Of its class.
        execution: Where its code runs.
        seedable: False, if it says that its reset takes no seed.
        offered: The actions that it offers after a reset.
    """

    name: str
    execution: Execution
    seedable: bool
    offered: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one call.

    Attributes:
        call: The call in words: `reset(seed=1)`, `step 2 ({"message": "hi"})`.
        reset: Whether it was a reset.
        observation: All its fields, as they travel.
        error: What came in its place.
    """

    call: str
    reset: bool
    observation: dict[str, Any] = field(default_factory=dict)
    reward: Any = None
    done: bool = False
    truncated: bool = False
    error: OpenEnvError | None = None


class Player:
    """One session, as a client has it.

    Args:
        client: Its client.
        seedable: Whether a seed may be given.
    """

    def __init__(self, client: GenericEnvClient, seedable: bool):
        self.client = client
        self._seedable = seedable
        self._steps = 0

    async def reset(self, seed: int | None = None, episode_id: str | None = EPISODE) -> Seen:
        """Starts an episode. Raises OpenEnvError."""
        arguments: dict[str, Any] = {} if episode_id is None else {"episode_id": episode_id}
        if seed is not None and self._seedable:
            arguments["seed"] = seed
        self._steps = 0
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != EPISODE)
        return _seen(f"reset({said})", True, await self.client.reset(**arguments))

    async def step(self, action: Mapping[str, Any], timeout_s: float | None = None) -> Seen:
        """Does an action. Raises OpenEnvError."""
        self._steps += 1
        result = await self.client.step(dict(action), timeout_s=timeout_s)
        return _seen(f"step {self._steps} ({action})", False, result)

    async def state(self) -> dict[str, Any]:
        """The state. Raises OpenEnvError."""
        return await self.client.state()

    async def play(
        self, actions: Sequence[Mapping[str, Any]], seed: int | None = None, limit_s: float | None = None
    ) -> list[Seen]:
        """Plays an episode to its end, or until there are no more actions, or for some seconds.

        Errors are part of what is seen. After one that says that the session is of no use any more, nothing follows.

        Raises:
            Fault: A step did not return in time.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        await asyncio.sleep(0)  # inline environments never wait, and others want to run too
        try:
            seen = [await self.reset(seed)]
        except OpenEnvError as error:
            seen = [Seen(f"reset(seed={seed})", True, error=error)]
            if not unsendable(error):
                return seen
        for action in actions:
            seen.append(await self._tried(action))
            if seen[-1].done or (until is not None and time.monotonic() > until) or _hopeless(seen[-1].error):
                break
        return seen

    async def _tried(self, action: Mapping[str, Any]) -> Seen:
        try:
            return await self.step(action)
        except StepTimeout as error:
            raise Fault(
                f"step {self._steps} ({action}) did not return: {error.message}.",
                "have every step return, or give up after a time of its own",
            ) from None
        except OpenEnvError as error:
            return Seen(f"step {self._steps} ({action})", False, error=error)


class Stage:
    """An environment under test.

    Args:
        app: What `create_app` made, or an `Environment` class.
        call_s: Seconds that one call may take.
        sessions: How many sessions are used at once.
        episodes: How many episodes are played to see whether memory grows.
        actions: To play with; None: those that the environment offers, or else some that its schema allows.

    Raises:
        CannotTell: The app was not made by `create_app`, so nobody can play in this process.

    Attributes:
        stuck: An environment was seen that does not close.
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
        self.app = app_in_process(app) if isinstance(app, type) and issubclass(app, Environment) else app
        self.server: Any = getattr(getattr(self.app, "state", None), "openenv", None)
        if self.server is None:
            raise CannotTell("the app was not made by create_app: serve it, and check it by its address (--url)")
        self.call_s = call_s
        self.sessions = sessions
        self.episodes = episodes
        self._given = actions
        self.stuck = False
        self._leaving: set[asyncio.Future[None]] = set()
        self._playing = 0
        self._facts: Facts | None = None
        self._repertoire: Repertoire | None = None
        self._sample: list[list[Seen]] | None = None

    @cached_property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """The JSON Schemas of its types, as `GET /schema` has them."""
        found: dict[str, dict[str, Any]] = self.server.schemas
        return found

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Player]:
        """A session for the length of a block, which is over when its environment is closed, if that ever comes."""
        facts = await self.facts()
        self._playing += 1
        client = self.client()
        try:
            yield Player(client, facts.seedable)
        finally:
            self._playing -= 1
            await self.leave(client)
        await self.quiet(self._playing)

    def client(self) -> GenericEnvClient:
        """A client of a session of its own."""
        return GenericEnvClient(app=self.app, message_timeout_s=self.call_s, wait_s=self.call_s)

    async def leave(self, *clients: GenericEnvClient) -> None:
        """Closes clients; what does not close is not waited for, and that only once."""
        self._leaving |= {asyncio.ensure_future(client.close()) for client in clients}
        if not self.stuck:
            _, self._leaving = await asyncio.wait(self._leaving, timeout=self.call_s)
            self.stuck = bool(self._leaving)

    async def quiet(self, sessions: int = 0) -> None:
        """Waits until no more than so many environments are open; if they do not close, once and not again."""
        until = time.monotonic() + self.call_s
        while self.server.active_sessions > sessions and not self.stuck:
            await asyncio.sleep(GLANCE_S)
            self.stuck = time.monotonic() > until

    async def facts(self) -> Facts:
        """What is constant for it; a session is opened to find out. Raises OpenEnvError."""
        if self._facts is None:
            await self.quiet()
            async with asyncio.timeout(OPENING * self.call_s):
                async with opened_session(self.server.manager) as session:
                    profile = session.profile
                    assert profile is not None
                    seedable = profile.seedable and await self._takes_seeds(session)
                    actions = await self._offered(session, profile)
                self._facts = Facts(profile.name, profile.execution, seedable, actions)
            await self.quiet()
        return self._facts

    async def actions(self) -> list[dict[str, Any]]:
        """Actions that can be played with, some of them more than once.

        Raises:
            CannotTell: There is no way to make one.
        """
        return [*(await self.repertoire()).actions]

    async def repertoire(self) -> Repertoire:
        """All that can be done here. Raises as `actions`."""
        if self._repertoire is None:
            facts = await self.facts()
            tools = None
            if Repertoire.takes_tools(self.server):
                async with self.session() as player:
                    await player.reset()
                    tools = (await player.step({"type": "list_tools"})).observation.get("tools", [])
            self._repertoire = Repertoire(self.server, self._given, facts.offered, tools)
        return self._repertoire

    async def sample(self) -> list[list[Seen]]:
        """A few episodes, each in a session of its own; played once."""
        if self._sample is None:
            actions = await self.actions()
            episodes = []
            for number in range(SAMPLES):
                async with self.session() as player:
                    turned = actions[number:] + actions[:number]
                    episodes.append(await player.play(turned[:STEPS], number, self.call_s / SAMPLES))
            self._sample = episodes
        return self._sample

    async def _takes_seeds(self, session: Any) -> bool:
        try:
            told = await result_of(lambda done: session.call(_metadata, None, done))
        except OpenEnvError:  # whose own affair that is
            return True
        return getattr(told, "seedable", None) is not False

    async def _offered(self, session: Any, profile: Any) -> list[dict[str, Any]]:
        if profile.execution is Execution.PROCESS and session.executor is None:
            return []
        try:
            found: list[dict[str, Any]] = await result_of(lambda done: session.call(offered, None, done))
        except OpenEnvError:
            return []
        return found


def _metadata(environment: Any, _: None) -> Any:
    return environment.get_metadata() if hasattr(environment, "get_metadata") else None


def _seen(call: str, reset: bool, result: StepResult[dict[str, Any]]) -> Seen:
    return Seen(call, reset, result.observation, result.reward, result.done, result.truncated)


def _hopeless(error: OpenEnvError | None) -> bool:
    """Whether nothing can follow in this session."""
    return error is not None and not isinstance(error, StepFailed) and error.blame != "client"


def unsendable(error: OpenEnvError) -> bool:
    """Whether the environment has answered, with what cannot be sent."""
    text = error.message
    return (
        text.startswith("the reward is ")
        or " cannot be written as " in text
        or "cannot be sent, since reading it raised" in text
    )
