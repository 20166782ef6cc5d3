"""Serve a PettingZoo environment: one session plays all agents, in parallel (Parallel API) or in turns (AEC API)."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from uuid import uuid4

import numpy as np
from gymnasium import Space, spaces
from pettingzoo.utils.env import AECEnv, ParallelEnv
from pydantic import Field

from ...environment import Environment
from ...errors import InvalidAction, ResetRequired, UsageError
from ...project.target import import_module
from ...types import Action, Observation, State
from ..farama import as_html, check_reset_arguments, duplicate, plain, served_class
from ..gymnasium.codec import SpaceCodec, codec_of, field_of, object_type

if TYPE_CHECKING:
    from fastapi import FastAPI


class PettingZooAction(Action):
    """What `step` takes: an action of each agent in `to_act`; subclasses type them by the spaces."""

    # Another process makes the class, which no module has, from this (`openenv.runtime.process`).
    __reference__: ClassVar[tuple[Any, ...]]

    actions: Any


class PettingZooObservation(Observation):
    """What `reset` and `step` return. `reward` is the sum of `rewards`; `done` is true once no agent lives.

    The fields by agent have the agents that act next, and those for which this was the last step.
    """

    observations: Any = Field(description="What each agent sees")
    rewards: dict[str, float] = Field(
        default_factory=dict, description="The reward of each agent since its last observation"
    )
    terminations: dict[str, bool] = Field(default_factory=dict, description="Which agents reached their own end")
    truncations: dict[str, bool] = Field(default_factory=dict, description="Which agents were cut short")
    infos: dict[str, dict[str, Any]] = Field(default_factory=dict, description="The `info` of each agent")
    action_masks: dict[str, list[int]] = Field(
        default_factory=dict, description="1 for each allowed action, where the environment has masks for the agent"
    )
    agents: list[str] = Field(default_factory=list, description="The agents that are still in the game")
    to_act: list[str] = Field(
        default_factory=list, description="The agents that act next: a step takes an action of each"
    )
    terminated: bool = Field(default=False, description="The episode is over, and no agent was cut short")
    truncated: bool = Field(default=False, description="The episode is over, and some agent was cut short")


class PettingZooState(State):
    """Facts about the episode in addition to its observations."""

    module: str = Field(description="The module that has the environment")
    seed: int | None = Field(default=None, description="The seed given to the last reset")
    agents: list[str] = Field(default_factory=list, description="The agents that are still in the game")
    to_act: list[str] = Field(default_factory=list, description="The agents that act next")


def by_agent(name: str, spaces: Mapping[str, Space[Any]], codecs: Mapping[str, SpaceCodec]) -> Any:
    """A type of JSON objects that map agents to members of their spaces. No agent is required."""
    fields = {agent: Annotated[codecs[agent].type, field_of(space)] for agent, space in spaces.items()}
    return object_type(name, fields, total=False)


@dataclass(slots=True)
class AgentReports:
    """Results of a call by agent, under PettingZoo's names."""

    observations: dict[Any, Any] = field(default_factory=dict)
    rewards: dict[Any, float] = field(default_factory=dict)
    terminations: dict[Any, bool] = field(default_factory=dict)
    truncations: dict[Any, bool] = field(default_factory=dict)
    infos: dict[Any, dict[str, Any]] = field(default_factory=dict)


class ParallelGame:
    """All live agents act at the same time (Parallel API)."""

    def __init__(self, env: ParallelEnv[Any, Any, Any]):
        self.env = env

    @property
    def to_act(self) -> list[Any]:
        """The agents that act in the next step."""
        return list(self.env.agents)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentReports:
        """Starts an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return AgentReports(observations=observations, infos=infos)

    def step(self, actions: dict[Any, Any]) -> AgentReports:
        """Takes one action of each agent in `to_act`."""
        return AgentReports(*self.env.step(actions))


class TurnBasedGame:
    """One agent acts at a time (AEC API). A dead agent gets its last report without having to act."""

    def __init__(self, env: AECEnv[Any, Any, Any]):
        self.env = env

    @property
    def to_act(self) -> list[Any]:
        return [self.env.agent_selection] if self.env.agents else []

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentReports:
        self.env.reset(seed=seed, options=options)
        return self._reports()

    def step(self, actions: dict[Any, Any]) -> AgentReports:
        self.env.step(actions[self.env.agent_selection])
        return self._reports()

    def _reports(self) -> AgentReports:
        """Reports of the next live agent, and of the dead agents before it."""
        reports = AgentReports()
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            reports.observations[agent] = observation
            reports.rewards[agent] = reward
            reports.terminations[agent], reports.truncations[agent] = terminated, truncated
            reports.infos[agent] = dict(info)
            if not (terminated or truncated):
                break
            self.env.step(None)
        return reports


AgentGame = ParallelGame | TurnBasedGame
"""A game by one of PettingZoo's two APIs."""

MOST_BUTTONS = 30
_MASK = "action_mask"


class PettingZooEnvironment(Environment[PettingZooAction, PettingZooObservation, PettingZooState]):
    """One game of many agents. Serve the subclasses that `pettingzoo_environment` makes.

    Attributes:
        module: Module of the environment.
        arguments: Keyword arguments for its constructor.
        action_cls: Its action class: one field `actions`, which has a field for each agent, typed by its space.
        observation_cls: Its observation class.
        names: Maps the names of agents in messages to PettingZoo's names.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    module: ClassVar[str]
    arguments: ClassVar[dict[str, Any]]
    action_cls: ClassVar[type[PettingZooAction]]
    observation_cls: ClassVar[type[PettingZooObservation]]
    names: ClassVar[dict[str, Any]]
    _make: ClassVar[Callable[..., AgentGame]]
    _action_codecs: ClassVar[dict[str, SpaceCodec]]
    _observation_codecs: ClassVar[dict[str, SpaceCodec]]

    def __init__(self) -> None:
        super().__init__()
        self._refusal = "call reset() before the first step()"
        self._playing = False
        self._cut_short = False
        self._state = PettingZooState(module=self.module)
        # A copy, since environments may keep and change their arguments.
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
            episode_id: Id of the episode; None to generate one.
            options: The `options` of the environment's own `reset`.

        Raises:
            InvalidAction: Seed or options have the wrong type.
        """
        check_reset_arguments(seed, options)
        self._playing = False
        reports = self._game.reset(seed, options)
        self._playing = True
        self._cut_short = False
        self._state = PettingZooState(module=self.module, seed=seed, episode_id=episode_id or uuid4().hex)
        return self._observe(reports, first=True)

    def step(self, action: PettingZooAction, timeout_s: float | None = None, **kwargs: Any) -> PettingZooObservation:
        """Takes one action of each agent in `to_act`.

        Raises:
            ResetRequired: No episode is running.
            InvalidAction: An agent in `to_act` has no action, or another agent has one.
        """
        if not self._playing:
            raise ResetRequired(self._refusal)
        wanted = self._state.to_act
        if set(action.actions) != set(wanted):
            raise InvalidAction(
                f"the step has actions of {', '.join(sorted(action.actions)) or 'no agent'}: it needs actions of "
                f"{', '.join(wanted)}, the agents in `to_act` of the last observation"
            )
        members = {self.names[name]: self._action_codecs[name].decode(action.actions[name]) for name in wanted}
        reports = self._game.step(members)
        self._state.step_count += 1
        return self._observe(reports, first=False)

    @property
    def state(self) -> PettingZooState:
        return self._state

    def close(self) -> None:
        self._game.env.close()

    def render_web(self, observation: Any) -> str | None:
        """The rendered view: a picture with `render_mode=rgb_array`, text with `ansi`, otherwise None."""
        env = self._game.env
        if getattr(env, "render_mode", None) in (None, "human") or self._state.episode_id is None:
            return None
        return as_html(env.render())

    def web_actions(self, observation: Any) -> list[tuple[str, dict[str, Any]]]:
        """A button for each allowed action, if a single agent acts next and has few actions."""
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

    def _observe(self, reports: AgentReports, first: bool) -> PettingZooObservation:
        """The observation made of the agents' reports, with their names in messages."""
        state = self._state
        state.agents = [str(agent) for agent in self._game.env.agents]
        state.to_act = [str(agent) for agent in self._game.to_act]
        over = not state.to_act
        self._cut_short |= any(reports.truncations.values())
        if over:
            self._playing = False
            self._refusal = f"the episode is over since step {state.step_count}: call reset() to start another one"
        rewards = {} if first else {str(agent): float(reward) for agent, reward in reports.rewards.items()}
        masks: dict[str, list[int]] = {}
        for agent in self._game.to_act:
            # Environments put action masks into the observation or into the info.
            for place in (reports.observations.get(agent), reports.infos.get(agent)):
                mask = place.get(_MASK) if isinstance(place, dict) else None
                if isinstance(mask, np.ndarray | list) and np.ndim(mask) == 1:
                    masks[str(agent)] = np.asarray(mask).astype(int).tolist()
        return self.observation_cls.model_construct(
            done=over,
            reward=None if first else float(sum(rewards.values())),
            metadata={},
            observations={
                str(agent): self._observation_codecs[str(agent)].encode(member)
                for agent, member in reports.observations.items()
                if member is not None
            },
            rewards=rewards,
            terminations={str(agent): bool(ended) for agent, ended in reports.terminations.items()},
            truncations={str(agent): bool(ended) for agent, ended in reports.truncations.items()},
            infos={str(agent): plain(info) for agent, info in reports.infos.items()},
            action_masks=masks,
            agents=list(state.agents),
            to_act=list(state.to_act),
            terminated=over and not self._cut_short,
            truncated=over and self._cut_short,
        )


# The parallel API first, if a module has both: one call for all agents is cheaper.
_CONSTRUCTORS = ("parallel_env", "env")


def pettingzoo_environment(module: str, **kwargs: Any) -> type[PettingZooEnvironment]:
    """Makes a class that serves an environment of PettingZoo; one instance is created to read its spaces.

    Args:
        module: A module of PettingZoo (`butterfly.pistonball_v6`) or any other; a suffix `:env` names the
            constructor, which by default is `parallel_env` if the module has one, and otherwise `env`.
        kwargs: Keyword arguments for the constructor.

    Raises:
        UsageError: The module or constructor does not exist, the constructor fails with these arguments, the
            environment has no `possible_agents`, or one of the spaces cannot be served.
        ImportFailed: The module cannot be imported.
    """
    constructor = _constructor(module)

    def make(**arguments: Any) -> AgentGame:
        env = constructor(**arguments)
        if isinstance(env, ParallelEnv):
            return ParallelGame(env)
        if isinstance(env, AECEnv):
            return TurnBasedGame(env)
        raise UsageError(f"pettingzoo:{module} makes a {type(env).__name__}: it must make an AECEnv or a ParallelEnv")

    try:
        game = make(**copy.deepcopy(kwargs))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{module} cannot be made with {kwargs}: {type(error).__name__}: {error}") from error
    try:
        return _class(module, kwargs, make, game)
    finally:
        game.env.close()


def pettingzoo_app(module: str, **kwargs: Any) -> FastAPI:
    """Makes an app that serves an environment of PettingZoo; arguments and errors of `pettingzoo_environment`."""
    from ...server.app import create_app  # noqa: PLC0415 - only what serves HTTP loads the web framework

    return create_app(pettingzoo_environment(module, **kwargs), name=module)


def _constructor(target: str) -> Callable[..., Any]:
    name, colon, wanted = target.partition(":")
    what = f"pettingzoo:{target}"
    full = f"pettingzoo.{name}"
    try:
        is_there = importlib.util.find_spec(full) is not None
    except ModuleNotFoundError:  # its parent package does not exist either
        is_there = False
    module = import_module(full if is_there else name, what)
    found = [each for each in ((wanted,) if colon else _CONSTRUCTORS) if callable(getattr(module, each, None))]
    if not found:
        raise UsageError(
            f"{what}: {module.__name__} has no {wanted or ' and no '.join(_CONSTRUCTORS)}: write MODULE:NAME for a "
            "function or class that makes an environment"
        )
    constructor: Callable[..., Any] = getattr(module, found[0])
    return constructor


def _class(
    module: str, kwargs: dict[str, Any], make: Callable[..., AgentGame], game: AgentGame
) -> type[PettingZooEnvironment]:
    env = game.env
    possible = getattr(env, "possible_agents", ())
    agents = {str(agent): agent for agent in possible}
    if not agents:
        raise UsageError(f"pettingzoo:{module} has no `possible_agents`: without them the actions are not known")
    if len(agents) < len(possible):
        raise UsageError(f"pettingzoo:{module} has agents whose names are equal as text: {possible}")
    actions = {name: env.action_space(agent) for name, agent in agents.items()}
    observations = {name: env.observation_space(agent) for name, agent in agents.items()}
    action_codecs = {name: codec_of(space) for name, space in actions.items()}
    observation_codecs = {name: codec_of(space) for name, space in observations.items()}
    name = re.sub(r"\W", "_", module.rpartition(".")[2])
    documentation = inspect.cleandoc(vars(type(env.unwrapped)).get("__doc__") or "")
    summary = " ".join(documentation.split("\n\n")[0].split()) or "An environment of PettingZoo."
    how = "act side by side" if isinstance(game, ParallelGame) else "take turns"
    made: type[PettingZooEnvironment] = served_class(
        name,
        PettingZooEnvironment,
        (PettingZooAction, PettingZooObservation, PettingZooState),
        {"actions": (by_agent("Actions", actions, action_codecs), ...)},
        {"observations": (by_agent("Observations", observations, observation_codecs), ...)},
        (pettingzoo_environment, module, kwargs),
        __doc__=f"{module}: {summary} Its agents {how}.",
        module=module,
        arguments=kwargs,
        names=agents,
        _make=staticmethod(make),
        _action_codecs=action_codecs,
        _observation_codecs=observation_codecs,
    )
    return made
