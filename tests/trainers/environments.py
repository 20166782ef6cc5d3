"""What the trainers of these tests train on: a counter with tools of its own, and its client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn
from pydantic import Field

from openenv.client import EnvClient
from openenv.environment import Environment
from openenv.server import create_app
from openenv.types import Action, Observation, State

__all__ = ["CountAction", "Counter", "CounterEnv", "CounterObservation", "counter_app", "served"]

PATIENCE_S = 10.0


class CountAction(Action):
    """Counts on."""

    by: int = Field(description="How far to count", ge=1, le=9)
    mood: Literal["fine", "bad"] = Field(default="fine", description="How it feels")


class CounterObservation(Observation):
    total: int


class Counter(Environment[CountAction, CounterObservation, State]):
    """The reward of a step is what it counted; an episode ends at ten or more."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def reset(self, seed: int | None = None, start: int = 0, **kwargs: Any) -> CounterObservation:
        self.total = start
        return CounterObservation(total=start)

    def step(self, action: CountAction, **kwargs: Any) -> CounterObservation:
        if action.mood == "bad":
            raise ValueError("a bad mood")
        self.total += action.by
        return CounterObservation(total=self.total, reward=float(action.by), done=self.total >= 10)

    @property
    def state(self) -> State:
        return State()


class CounterEnv(EnvClient[CountAction, CounterObservation, State]):
    pass


def counter_app() -> Any:
    return create_app(Counter, CountAction, CounterObservation, env_name="counter", max_concurrent_envs=64)


@contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """The app under uvicorn, on a thread; yields `host:port`. The same port can be had again afterwards."""
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive()
