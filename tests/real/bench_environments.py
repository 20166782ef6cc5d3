"""An environment that does wrong on demand, to be served to benchmarks."""

from __future__ import annotations

import os
import secrets

from openenv import Action, Environment, Observation, State

__all__ = ["CRASH", "FORGET", "LIE", "RAISE", "Moody"]

# What a step of so many seconds asks for. 0 asks for nothing.
LIE = 0.001
FORGET = 0.002
RAISE = 0.003
CRASH = 0.004


class MoodyAction(Action):
    wait_seconds: float = 0.0
    end: bool = False


class MoodyObservation(Observation):
    waited_seconds: float = 0.0
    session_hash: str = ""


class Moody(Environment[MoodyAction, MoodyObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._hash = secrets.token_hex(8)

    def reset(self, seed=None, episode_id=None, **kwargs):
        return MoodyObservation(session_hash=self._hash)

    def step(self, action, timeout_s=None, **kwargs):
        wait = action.wait_seconds
        if wait == RAISE:
            raise ValueError("not in the mood")
        if wait == CRASH:
            os._exit(3)
        return MoodyObservation(
            waited_seconds=0.0 if wait == LIE else wait,
            session_hash="somebody else" if wait == FORGET else self._hash,
            done=action.end,
        )

    @property
    def state(self):
        return State()
