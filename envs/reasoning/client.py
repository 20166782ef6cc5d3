"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import ReasoningAction, ReasoningObservation, ReasoningState

__all__ = ["ReasoningEnv"]


class ReasoningEnv(EnvClient[ReasoningAction, ReasoningObservation, ReasoningState]):
    """Answers one question at a time.

    Example::

        with ReasoningEnv(base_url="http://localhost:8000").sync() as env:
            result = env.reset(split="train", index=0, task="leg_counting")
            print(result.observation.question)
            result = env.step(ReasoningAction(answer="292"))
            print(result.reward, result.done)

    Arguments of `reset`, all by name: `seed`; `task`, the name of a dataset; `split` and `index` for a certain
    question; `tries` (1 to 10), how often it may be answered.

    In asynchronous code the same calls are awaited. `ReasoningEnv(env=ReasoningEnvironment)` needs no server.
    """
