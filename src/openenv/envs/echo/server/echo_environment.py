"""The echo environment. Run this file to check it."""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

from openenv.environment import Environment
from openenv.envs.echo.models import EchoAction, EchoObservation
from openenv.types import State

__all__ = ["EchoEnvironment", "check"]

REWARD_PER_CHARACTER = 0.1


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Repeats each message. The reward is 0.1 per character. Episodes do not end."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self._episode_id = uuid4().hex
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
        """Starts an episode. The seed has no effect, since nothing is random."""
        self._episode_id = episode_id or uuid4().hex
        self._steps = 0
        return EchoObservation(echoed_message="Echo is ready: send a message.")

    def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:
        """Repeats the message."""
        self._steps += 1
        length = len(action.message)
        return EchoObservation(
            echoed_message=action.message, message_length=length, reward=REWARD_PER_CHARACTER * length
        )

    @property
    def state(self) -> State:
        return State(episode_id=self._episode_id, step_count=self._steps)


def check(environment: EchoEnvironment) -> list[str]:
    """Plays a short episode, and returns its faults."""
    ready = environment.reset(episode_id="check")
    echo = environment.step(EchoAction(message="hello"))
    findings = {
        "reset gives a message and no reward": bool(ready.echoed_message) and ready.reward is None,
        "step repeats the message": echo.echoed_message == "hello" and echo.message_length == 5,
        "five characters are worth 0.5": echo.reward == 0.5,
        "the episode goes on": not echo.done,
        "state counts the step": environment.state == State(episode_id="check", step_count=1),
    }
    return [claim for claim, holds in findings.items() if not holds]


if __name__ == "__main__":
    faults = check(EchoEnvironment())
    print("\n".join(f"wrong: {fault}" for fault in faults) or "echo environment: ok")
    sys.exit(bool(faults))
