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

    `reset` takes keyword arguments: `seed`; `task`, the name of a dataset; `split` and `index`, which select a
    question; `tries`, the number of answers (1 to 10).

    In asynchronous code the same calls are awaited. `ReasoningEnv(env=ReasoningEnvironment)` needs no server.
    """
