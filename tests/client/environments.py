"""What the client's tests drive: an environment with types of its own, its client, and apps of both."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from openenv.client import EnvClient
from openenv.client.endpoints import ANY_SERVER
from openenv.environment import Environment
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State

__all__ = [
    "Bell",
    "Counter",
    "CounterAction",
    "CounterEnv",
    "CounterObservation",
    "CounterState",
    "HesitantEnv",
    "RingingCounter",
    "ThreadCounter",
    "app_of",
    "plain_app",
]


class CounterAction(Action):
    by: int
    mood: str = "fine"


class CounterObservation(Observation):
    total: int


class CounterState(State):
    total: int


class Counter(Environment[CounterAction, CounterObservation, CounterState]):
    """Adds up. The reward of a step is its number within the episode, by which replies can be told apart."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self.total = self.steps = 0
        self.episode_id: str | None = None

    def reset(self, seed=None, episode_id=None, start=0, **kwargs: Any) -> CounterObservation:
        self.total, self.steps, self.episode_id = start, 0, episode_id
        return CounterObservation(total=start, metadata={"seed": seed, **kwargs} if seed or kwargs else {})

    def step(self, action: CounterAction, timeout_s=None, **kwargs: Any) -> CounterObservation:
        if action.mood == "bad":
            raise ValueError("a bad mood")
        self.total += action.by
        self.steps += 1
        reward = math.nan if action.mood == "lost" else float(self.steps)
        return CounterObservation(total=self.total, reward=reward, done=action.mood == "done")

    @property
    def state(self) -> CounterState:
        return CounterState(episode_id=self.episode_id, step_count=self.steps, total=self.total)


class ThreadCounter(Counter):
    """The same on a thread of its own."""

    execution = None


class Bell:
    """What steps wait for on the event loop: each step rings in, and answers when the test lets it.

    Attributes:
        waiting: One future a step, in the order in which the steps began.
    """

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []


class RingingCounter(Counter):
    """The same, asynchronous; a step waits for the bell."""

    execution = None

    def __init__(self, bell: Bell):
        super().__init__()
        self.bell = bell

    async def reset_async(self, seed=None, episode_id=None, **kwargs: Any) -> CounterObservation:
        return self.reset(seed, episode_id, **kwargs)

    async def step_async(self, action: CounterAction, timeout_s=None, **kwargs: Any) -> CounterObservation:
        rung = asyncio.get_running_loop().create_future()
        self.bell.waiting.append(rung)
        await rung
        return self.step(action, timeout_s, **kwargs)


class CounterEnv(EnvClient[CounterAction, CounterObservation, CounterState]):
    """The client of all of them."""


class HesitantEnv(CounterEnv):
    """A client whose connections are there when the test lets them.

    Attributes:
        ready: Set for connections to be there.
        connecting: How many wait for that.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.ready = asyncio.Event()
        self.connecting = 0

    async def _dial(self, affinity: Any = ANY_SERVER) -> Any:
        end = await super()._dial(affinity)
        self.connecting += 1
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            await end.aclose()
            raise
        return end


def app_of(factory: Any = Counter, sessions: int | None = None, **settings: Any) -> Any:
    """An app that serves a counter."""
    return create_app(
        factory,
        CounterAction,
        CounterObservation,
        max_concurrent_envs=sessions,
        state_cls=CounterState,
        settings=ServerSettings(**settings),
    )


def plain_app(factory: Any, sessions: int | None = None, **settings: Any) -> Any:
    """An app that serves an environment with the types everybody has."""
    return create_app(factory, Action, Observation, max_concurrent_envs=sessions, settings=ServerSettings(**settings))
