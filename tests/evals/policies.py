"""Policies as users write them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from .environments import DiceAction


def go_on(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"stop": False}


def stop_at_ten(observation: Mapping[str, Any]) -> DiceAction:
    return DiceAction(stop=observation["total"] >= 10)


async def at_random(observation: Mapping[str, Any], *, rng: Random, step: int, seed: int) -> dict[str, Any]:
    assert isinstance(seed, int)
    return {"stop": step > 0 and rng.random() < 0.3}


class Agent:
    """Stops after as many steps as its seed says."""

    def __init__(self, seed: int) -> None:
        self.left = seed % 3

    def act(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        self.left -= 1
        return {"stop": self.left < 0}


class AsyncAgent:
    async def act(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        return {"stop": True}


class Callable_:
    def __call__(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        return {"stop": True}


shared = AsyncAgent()
called = Callable_()
a_number = 3


def raises(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"stop": observation["no such field"]}


def chooses_nothing(observation: Mapping[str, Any]) -> Any:
    return None


def chooses_wrongly(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"stop": "perhaps", "more": 1}


_script: Iterator[dict[str, Any]] = iter(())


def runs_out(observation: Mapping[str, Any]) -> dict[str, Any]:
    return next(_script)


async def runs_out_async(observation: Mapping[str, Any]) -> dict[str, Any]:
    return next(_script)


async def cancels_itself(observation: Mapping[str, Any]) -> dict[str, Any]:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    waiting.cancel()
    return {"stop": await waiting}


def chooses_too_deep(observation: Mapping[str, Any]) -> dict[str, Any]:
    action: dict[str, Any] = {}
    for _ in range(5000):
        action = {"stop": action}
    return action


place = Path()


def removes_a_folder(observation: Mapping[str, Any]) -> dict[str, Any]:
    place.rmdir()
    return {"stop": True}


def guesses_up(observation: Mapping[str, Any], step: int) -> dict[str, Any]:
    return {"guess": step + 1}


class CannotBeMade:
    def __init__(self) -> None:
        raise OSError("no model file")

    def act(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        return {}
