"""An environment of PettingZoo as one of this package: one session plays all agents.

An action is `{"actions": {agent: member of its action space}}`, with an entry for each agent that the last
observation has in `to_act`: all that live where they act side by side (parallel), one where they take turns (AEC).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from gymnasium import spaces

from ...environment import Environment
from ...errors import InvalidAction, ResetRequired
from ..gymnasium.codec import SpaceCodec
from ..gymnasium.duplicate import duplicate
from ..gymnasium.plain import plain
from ..picture import as_html
from ..reset_arguments import check_reset_arguments
from .models import PettingZooAction, PettingZooObservation, PettingZooState
from .turns import Game, Told

__all__ = ["PettingZooEnvironment"]

MOST_BUTTONS = 30
_MASK = "action_mask"


class PettingZooEnvironment(Environment[PettingZooAction, PettingZooObservation, PettingZooState]):
    """One game of many agents. Serve the subclasses that `pettingzoo_environment` makes.

    Attributes:
        module: The module that has the environment.
        arguments: Keyword arguments for its constructor.
        action_cls: Its action: one field `actions`, which has a field for each agent, typed by its space.
        observation_cls: Its observation.
        names: Names of agents, as they are on the wire, and what PettingZoo calls them.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    module: ClassVar[str]
    arguments: ClassVar[dict[str, Any]]
    action_cls: ClassVar[type[PettingZooAction]]
    observation_cls: ClassVar[type[PettingZooObservation]]
    names: ClassVar[dict[str, Any]]
    _make: ClassVar[Callable[..., Game]]
    _action_codecs: ClassVar[dict[str, SpaceCodec]]
    _observation_codecs: ClassVar[dict[str, SpaceCodec]]

    def __init__(self) -> None:
        super().__init__()
        self._refusal = "call reset() before the first step()"
        self._playing = False
        self._cut_short = False
        self._state = PettingZooState(module=self.module)
        # The arguments are copied, so that environments which keep and change them share nothing.
        self._game = type(self)._make(**copy.deepcopy(self.arguments))

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> PettingZooObservation:
        """Starts an episode.

        Args:
            seed: An integer of at least 0 makes this episode repeatable.
            episode_id: Name for the episode; one is made up if it is None.
            options: What the environment's own `reset` takes under this name.

        Raises:
            InvalidAction: Seed or options are of the wrong type.
        """
        check_reset_arguments(seed, options)
        self._playing = False
        told = self._game.reset(seed, options)
        self._playing = True
        self._cut_short = False
        self._state = PettingZooState(module=self.module, seed=seed, episode_id=episode_id or uuid4().hex)
        return self._seen(told, first=True)

    def step(self, action: PettingZooAction, timeout_s: float | None = None, **kwargs: Any) -> PettingZooObservation:
        """Does one action of each agent in `to_act`.

        Raises:
            ResetRequired: No episode is running.
            InvalidAction: An agent that is to act has no action, or one that is not to act has one.
        """
        if not self._playing:
            raise ResetRequired(self._refusal)
        wanted = self._state.to_act
        if set(action.actions) != set(wanted):
            raise InvalidAction(
                f"actions are of {', '.join(sorted(action.actions)) or 'nobody'}, and must be of "
                f"{', '.join(wanted)}: `to_act` of the last observation names those who act next"
            )
        members = {self.names[name]: self._action_codecs[name].decode(action.actions[name]) for name in wanted}
        told = self._game.step(members)
        self._state.step_count += 1
        return self._seen(told, first=False)

    @property
    def state(self) -> PettingZooState:
        return self._state

    def close(self) -> None:
        self._game.env.close()

    def render_web(self, observation: Any) -> str | None:
        """What the environment renders: a picture with `render_mode=rgb_array`, text with `ansi`, else nothing."""
        env = self._game.env
        if getattr(env, "render_mode", None) in (None, "human") or self._state.episode_id is None:
            return None
        return as_html(env.render())

    def web_actions(self, observation: Any) -> list[tuple[str, dict[str, Any]]]:
        """A button for each action that is allowed, where one agent is to act and has few."""
        if not self._playing or len(self._state.to_act) != 1:
            return []
        (name,) = self._state.to_act
        space = self._game.env.action_space(self.names[name])
        if not isinstance(space, spaces.Discrete) or space.n > MOST_BUTTONS:
            return []
        mask = observation["action_masks"].get(name) if "action_masks" in observation else None
        values = range(int(space.start), int(space.start + space.n))
        allowed = [value for place, value in enumerate(values) if mask is None or mask[place]]
        return [(f"{name}: {value}", {"actions": {name: value}}) for value in allowed]

    def __deepcopy__(self, memo: dict[int, Any]) -> PettingZooEnvironment:
        return duplicate(self, self._game.env, memo)

    def _seen(self, told: Told, first: bool) -> PettingZooObservation:
        """What was told, under the names of the wire, and what it means for the whole."""
        state = self._state
        state.agents = [str(agent) for agent in self._game.agents]
        state.to_act = [str(agent) for agent in self._game.to_act]
        over = not state.to_act
        self._cut_short |= any(told.truncations.values())
        if over:
            self._playing = False
            self._refusal = f"the episode is over since step {state.step_count}: call reset() to start another one"
        rewards = {} if first else {str(agent): float(reward) for agent, reward in told.rewards.items()}
        return self.observation_cls.model_construct(
            done=over,
            reward=None if first else float(sum(rewards.values())),
            metadata={},
            observations={
                str(agent): self._observation_codecs[str(agent)].encode(member)
                for agent, member in told.observations.items()
                if member is not None
            },
            rewards=rewards,
            terminations={str(agent): bool(ended) for agent, ended in told.terminations.items()},
            truncations={str(agent): bool(ended) for agent, ended in told.truncations.items()},
            infos={str(agent): plain(info) for agent, info in told.infos.items()},
            action_masks=_masks(told, self._game.to_act),
            agents=list(state.agents),
            to_act=list(state.to_act),
            terminated=over and not self._cut_short,
            truncated=over and self._cut_short,
        )


def _masks(told: Told, to_act: list[Any]) -> dict[str, list[int]]:
    """Where environments keep them: in the observation, or in the info."""
    masks: dict[str, list[int]] = {}
    for agent in to_act:
        for place in (told.observations.get(agent), told.infos.get(agent)):
            mask = place.get(_MASK) if isinstance(place, dict) else None
            if isinstance(mask, np.ndarray | list) and np.ndim(mask) == 1:
                masks[str(agent)] = np.asarray(mask).astype(int).tolist()
    return masks
