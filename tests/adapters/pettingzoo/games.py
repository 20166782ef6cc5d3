"""Games of many agents, without windows: one side by side, one in turns, and some that nobody can serve."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import EzPickle
from pettingzoo.utils import wrappers
from pettingzoo.utils.env import AECEnv, ParallelEnv


class Race(ParallelEnv[Any, Any, Any]):
    """Each runner goes 0 to 2 on. Who has gone `length` has arrived; who stands still at step 3 is out."""

    metadata = {"name": "race_v0", "render_modes": ["ansi", "rgb_array"]}

    def __init__(self, length: int = 4, limit: int = 10, render_mode: str | None = None):
        self.possible_agents = ["ann", "bob"]
        self.agents: list[str] = []
        self.length, self.limit, self.render_mode = length, limit, render_mode
        self.rng = np.random.default_rng()

    def action_space(self, agent: Any) -> Space[Any]:
        return spaces.Discrete(3) if agent == "ann" else spaces.MultiDiscrete([3])

    def observation_space(self, agent: Any) -> Space[Any]:
        return spaces.Dict(at=spaces.Box(0, 100, (2,), np.int64), luck=spaces.Box(0, 1, (), np.float64))

    def observe(self) -> dict[str, Any]:
        at = np.array([self.at["ann"], self.at["bob"]])
        return {agent: {"at": at, "luck": np.asarray(self.rng.random())} for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.at = {"ann": 0, "bob": 0}
        self.steps = 0
        return self.observe(), {agent: {"options": options} for agent in self.agents}

    def step(self, actions: dict[Any, Any]) -> Any:
        self.steps += 1
        assert list(actions) == self.agents
        moves = {agent: int(np.asarray(action).sum()) for agent, action in actions.items()}
        for agent, move in moves.items():
            self.at[agent] += move
        seen = self.observe()
        arrived = {agent: self.at[agent] >= self.length for agent in self.agents}
        cut = {agent: self.steps >= self.limit and not arrived[agent] for agent in self.agents}
        rewards = {agent: float(move) for agent, move in moves.items()}
        infos = {agent: {"step": np.int64(self.steps)} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (arrived[agent] or cut[agent])]
        return seen, rewards, arrived, cut, infos

    def render(self) -> Any:
        return f"ann {self.at['ann']}" if self.render_mode == "ansi" else np.zeros((2, 3, 3), np.uint8)


class Take(AECEnv[Any, Any, Any], EzPickle):
    """There are `heap` stones; in turn, one takes 1 to 3 of them. Who takes the last one wins."""

    metadata = {"name": "take_v0", "render_modes": []}

    def __init__(self, heap: int = 7, players: int = 2, forfeit: bool = False):
        super().__init__()
        EzPickle.__init__(self, heap, players, forfeit)
        self.heap, self.forfeit = heap, forfeit
        self.possible_agents = list(range(players))
        self.render_mode = None

    def action_space(self, agent: Any) -> Space[Any]:
        return spaces.Discrete(3, start=1)

    def observation_space(self, agent: Any) -> Space[Any]:
        return spaces.Dict(left=spaces.Discrete(100), action_mask=spaces.MultiBinary(3))

    def observe(self, agent: Any) -> Any:
        mask = np.array([self.left >= number for number in (1, 2, 3)], np.int8)
        return {"left": np.int64(max(0, self.left)), "action_mask": mask}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.left = (options or {}).get("heap", self.heap)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[Any, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.left -= int(action)
        if self.left <= 0:
            self.rewards = {each: 1.0 if each == agent else -1.0 for each in self.agents}
            ended = self.truncations if self.forfeit else self.terminations
            ended.update(dict.fromkeys(self.agents, True))
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self._accumulate_rewards()
        self._deads_step_first()


class Nameless(Take):
    """Nobody knows who may play."""

    def __init__(self) -> None:
        super().__init__()
        del self.possible_agents


class Twins(Take):
    """Two agents of one name on the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [1, "1"]


class Strange(Take):
    """Has a space that nobody has heard of."""

    def action_space(self, agent: Any) -> Space[Any]:
        return Space()


def parallel_env(**kwargs: Any) -> Race:
    return Race(**kwargs)


def env(**kwargs: Any) -> Any:
    return wrappers.OrderEnforcingWrapper(Take(**kwargs))


def broken() -> Race:
    raise OSError("no such arena")


def other() -> int:
    return 3
