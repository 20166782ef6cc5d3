"""One game of many agents, whichever of PettingZoo's two interfaces it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from pettingzoo.utils.env import AECEnv, ParallelEnv

__all__ = ["Game", "InTurns", "SideBySide", "Told"]


@dataclass(slots=True)
class Told:
    """What some agents are told, each under its own name as PettingZoo has it."""

    observations: dict[Any, Any] = field(default_factory=dict)
    rewards: dict[Any, float] = field(default_factory=dict)
    terminations: dict[Any, bool] = field(default_factory=dict)
    truncations: dict[Any, bool] = field(default_factory=dict)
    infos: dict[Any, dict[str, Any]] = field(default_factory=dict)


class Game(ABC):
    """A game and who plays it."""

    env: Any

    @property
    def agents(self) -> list[Any]:
        """Who lives."""
        return list(self.env.agents)

    @property
    @abstractmethod
    def to_act(self) -> list[Any]:
        """Whose actions the next step takes."""

    @abstractmethod
    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Told:
        """Begins an episode."""

    @abstractmethod
    def step(self, actions: dict[Any, Any]) -> Told:
        """Takes one action of each agent in `to_act`."""


class SideBySide(Game):
    """All agents that live act at a time."""

    def __init__(self, env: ParallelEnv[Any, Any, Any]):
        self.env = env

    @property
    def to_act(self) -> list[Any]:
        return list(self.env.agents)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Told:
        observations, infos = self.env.reset(seed=seed, options=options)
        return Told(observations=observations, infos=infos)

    def step(self, actions: dict[Any, Any]) -> Told:
        return Told(*self.env.step(actions))


class InTurns(Game):
    """One agent acts at a time. Those that are dead are told of their end, and need not act for it."""

    def __init__(self, env: AECEnv[Any, Any, Any]):
        self.env = env

    @property
    def to_act(self) -> list[Any]:
        return [self.env.agent_selection] if self.env.agents else []

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Told:
        self.env.reset(seed=seed, options=options)
        return self._heard()

    def step(self, actions: dict[Any, Any]) -> Told:
        self.env.step(actions[self.env.agent_selection])
        return self._heard()

    def _heard(self) -> Told:
        """What the next agent that lives is told, and those before it that have died."""
        told = Told()
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            told.observations[agent] = observation
            told.rewards[agent] = reward
            told.terminations[agent], told.truncations[agent] = terminated, truncated
            told.infos[agent] = dict(info)
            if not (terminated or truncated):
                break
            self.env.step(None)
        return told
