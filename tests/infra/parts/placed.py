"""An environment that tells which server it is on."""

from __future__ import annotations

import os
from typing import Any

from ...client.environments import Counter, CounterAction, CounterEnv, CounterObservation

__all__ = ["ONE", "TARGET", "PlacedCounter", "PlacedEnv"]

TARGET = f"{__name__}:PlacedCounter"
"""What servers serve it by."""
ONE = CounterAction(by=1)


class PlacedCounter(Counter):
    """The counter of the client's tests, whose replies carry the number of their server's process."""

    def reset(self, seed: Any = None, episode_id: Any = None, start: int = 0, **kwargs: Any) -> CounterObservation:
        found = super().reset(seed, episode_id, start, **kwargs)
        return found.model_copy(update={"metadata": {"pid": os.getpid()}})

    def step(self, action: CounterAction, timeout_s: Any = None, **kwargs: Any) -> CounterObservation:
        found = super().step(action, timeout_s, **kwargs)
        return found.model_copy(update={"metadata": {"pid": os.getpid()}})


class PlacedEnv(CounterEnv):
    """Its client."""
