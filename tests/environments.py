"""Environments that tests share: small, honest, and able to tell what was done to them."""

from __future__ import annotations

import threading
from typing import Any

from openenv.environment import Environment
from openenv.types import Action, Observation, State

from .asynchronous import Gate

__all__ = ["AsyncPlain", "Diary", "Exclusive", "Gated", "InlinePlain", "MixedPlain", "Plain"]


class Plain(Environment[Action, Observation, State]):
    """Counts its steps, and gives the count as reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.closings = 0

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        self.steps = 0
        return Observation(metadata={"seed": seed, "episode_id": episode_id, **kwargs})

    def step(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        self.steps += 1
        return Observation(reward=float(self.steps), metadata={"timeout_s": timeout_s, **kwargs})

    @property
    def state(self) -> State:
        return State(step_count=self.steps)

    def close(self) -> None:
        self.closings += 1


class InlinePlain(Plain):
    """The same on the event loop."""

    execution = "inline"


class AsyncPlain(Plain):
    """The same, asynchronous."""

    async def reset_async(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        return self.reset(seed, episode_id, **kwargs)

    async def step_async(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        return self.step(action, timeout_s, **kwargs)


class MixedPlain(Plain):
    """The same with a synchronous reset and an asynchronous step."""

    async def step_async(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        return self.step(action, timeout_s, **kwargs)


class Exclusive(Plain):
    """The same for one session at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class Diary(Plain):
    """Notes which method ran on which thread, in a list that the test holds."""

    def __init__(self, notes: list[tuple[str, int]]):
        super().__init__()
        self.notes = notes
        self.note("init")

    def note(self, method: str) -> None:
        self.notes.append((method, threading.get_ident()))

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        self.note("reset")
        return super().reset(seed, episode_id, **kwargs)

    def step(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        self.note("step")
        return super().step(action, timeout_s, **kwargs)

    @property
    def state(self) -> State:
        self.note("state")
        return super().state

    def close(self) -> None:
        self.note("close")
        super().close()


class Gated(Plain):
    """Waits at the gates it is given: in its constructor, in `step`, in `close`."""

    def __init__(self, making: Gate | None = None, stepping: Gate | None = None, closing: Gate | None = None):
        super().__init__()
        self.stepping, self.closing = stepping, closing
        if making is not None:
            making.wait()

    def step(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        if self.stepping is not None:
            self.stepping.wait()
        return super().step(action, timeout_s, **kwargs)

    def close(self) -> None:
        if self.closing is not None:
            self.closing.wait()
        super().close()
