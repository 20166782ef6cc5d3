"""An environment that does what a test asks of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from fastapi import FastAPI
from pydantic import field_validator

from openenv.environment import Environment
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State


class ProbeAction(Action):
    kind: str = "ok"
    number: int = 0

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind == "invalid":
            raise ValueError("this kind is never valid")
        if kind == "validator-bug":
            raise LookupError("the validator has a bug")
        return kind


class ProbeObservation(Observation):
    value: Any = None
    step_count: int = 0
    thread: int = 0


class Snare:
    """What a library may take for a number, and what raises when it is read: a tensor with two elements, for one."""

    def __float__(self) -> float:
        raise RuntimeError("two elements cannot become one number")

    def __bool__(self) -> bool:
        raise RuntimeError("two elements have no truth value")


class ProbeEnvironment(Environment[ProbeAction, ProbeObservation, State]):
    """Steps as it is told. A step of kind "wait" stays until a test opens the gate; "hang" waits to be cancelled."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate = threading.Event()
    waiting = threading.Event()
    closed = threading.Event()
    stopped = threading.Event()

    @classmethod
    def forget(cls) -> None:
        """Closes the gate, and makes all else as if nothing had happened."""
        for event in (cls.gate, cls.waiting, cls.closed, cls.stopped):
            event.clear()

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> ProbeObservation:
        self._steps = 0
        return ProbeObservation(value=seed, thread=threading.get_ident())

    def step(self, action: ProbeAction) -> ProbeObservation:
        self._steps += 1
        return getattr(self, f"do_{action.kind.replace('-', '_')}", self.do_ok)(action)

    def do_ok(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(value=action.number, step_count=self._steps, reward=1.5, thread=threading.get_ident())

    def do_wait(self, action: ProbeAction) -> ProbeObservation:
        type(self).waiting.set()
        assert type(self).gate.wait(120)
        return self.do_ok(action)

    def do_raise(self, action: ProbeAction) -> ProbeObservation:
        raise ValueError("the environment broke")

    def do_exit(self, action: ProbeAction) -> ProbeObservation:
        raise SystemExit(3)

    def do_nan_reward(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(reward=float("nan"))

    def do_nan_value(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(value=float("nan"), reward=0.0)

    def do_object(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(value=object())

    def do_snare_reward(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation.model_construct(reward=Snare())

    def do_snare_done(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation.model_construct(done=Snare())

    def do_metadata(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(metadata={"lives": 3}, done=True)

    def do_large(self, action: ProbeAction) -> ProbeObservation:
        return ProbeObservation(value="x" * action.number)

    @property
    def state(self) -> State:
        return State(episode_id="probe", step_count=self._steps)

    def close(self) -> None:
        type(self).closed.set()


class InlineProbe(ProbeEnvironment):
    execution = "inline"


class AsyncProbe(ProbeEnvironment):
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> ProbeObservation:
        return self.reset(seed, episode_id)

    async def step_async(self, action: ProbeAction) -> ProbeObservation:
        if action.kind == "hang":
            await self._hang()
        return self.step(action)

    async def _hang(self) -> None:
        type(self).waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            type(self).stopped.set()
            raise


class BrokenProbe(ProbeEnvironment):
    def __init__(self) -> None:
        raise OSError("no such device")


def app_of(environment: Any = ProbeEnvironment, max_sessions: int = 4, **settings: Any) -> FastAPI:
    return create_app(
        environment,
        ProbeAction,
        ProbeObservation,
        max_concurrent_envs=max_sessions,
        settings=ServerSettings.read({}, **settings),
    )
