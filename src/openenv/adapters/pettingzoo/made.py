"""From the name of a module to a class that can be served."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
from collections.abc import Callable
from types import GenericAlias
from typing import TYPE_CHECKING, Any

from pettingzoo.utils.env import AECEnv, ParallelEnv
from pydantic import create_model

from ...environment import Environment
from ...errors import UsageError
from ...project.imports import import_module
from ..gymnasium.codec import codec_of
from .environment import PettingZooEnvironment
from .models import PettingZooAction, PettingZooObservation, PettingZooState, by_agent
from .turns import Game, InTurns, SideBySide

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["pettingzoo_app", "pettingzoo_environment"]

# In this order: where a module has both, one call for all agents is the cheaper one.
_CONSTRUCTORS = ("parallel_env", "env")


def pettingzoo_environment(module: str, **kwargs: Any) -> type[PettingZooEnvironment]:
    """Makes a class that serves an environment of PettingZoo; one instance is made to see its spaces.

    Args:
        module: Of PettingZoo (`butterfly.pistonball_v6`), or any other one; `:env` behind it chooses the constructor,
            which otherwise is `parallel_env` if the module has one, and `env` if not.
        kwargs: For the constructor.

    Raises:
        UsageError: There is no such module or constructor, it fails with these arguments, it does not say
            who may play, or one of the spaces cannot be served.
        ImportFailed: The module cannot be imported.
    """
    constructor = _constructor(module)

    def make(**arguments: Any) -> Game:
        return _game(constructor(**arguments), module)

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
    """Makes an app that serves an environment of PettingZoo; arguments and errors as above."""
    from ...server import create_app

    environment = pettingzoo_environment(module, **kwargs)
    return create_app(
        environment, environment.action_cls, environment.observation_cls, module, state_cls=PettingZooState
    )


def _constructor(target: str) -> Callable[..., Any]:
    name, colon, wanted = target.partition(":")
    what = f"pettingzoo:{target}"
    full = f"pettingzoo.{name}"
    module = import_module(full if _is_there(full) else name, what)
    found = [each for each in ((wanted,) if colon else _CONSTRUCTORS) if callable(getattr(module, each, None))]
    if not found:
        raise UsageError(
            f"{what}: {module.__name__} has no {wanted or ' and no '.join(_CONSTRUCTORS)}: write MODULE:NAME for a "
            "function or class that makes an environment"
        )
    constructor: Callable[..., Any] = getattr(module, found[0])
    return constructor


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is what it would be in
        return False


def _game(env: Any, what: str) -> Game:
    if isinstance(env, ParallelEnv):
        return SideBySide(env)
    if isinstance(env, AECEnv):
        return InTurns(env)
    raise UsageError(f"pettingzoo:{what} makes a {type(env).__name__}, which is no environment of PettingZoo")


def _class(module: str, kwargs: dict[str, Any], make: Callable[..., Game], game: Game) -> type[PettingZooEnvironment]:
    env, agents = game.env, _agents(game, module)
    actions = {name: env.action_space(agent) for name, agent in agents.items()}
    observations = {name: env.observation_space(agent) for name, agent in agents.items()}
    action_codecs = {name: codec_of(space) for name, space in actions.items()}
    observation_codecs = {name: codec_of(space) for name, space in observations.items()}
    name = re.sub(r"\W", "_", module.rpartition(".")[2])
    action_cls = create_model(
        f"{name}_Action",
        __base__=PettingZooAction,
        __module__=__name__,
        actions=(by_agent("Actions", actions, action_codecs), ...),
    )
    observation_cls = create_model(
        f"{name}_Observation",
        __base__=PettingZooObservation,
        __module__=__name__,
        observations=(by_agent("Observations", observations, observation_codecs), ...),
    )
    action_cls.__reference__ = (_action_again, module, kwargs)
    made: type[PettingZooEnvironment] = type(
        name,
        (PettingZooEnvironment,),
        {
            "__doc__": _description(module, game),
            "__module__": __name__,
            # What it is made for, as a class that is written down says it (PEP 560).
            "__orig_bases__": (GenericAlias(Environment, (action_cls, observation_cls, PettingZooState)),),
            "module": module,
            "arguments": kwargs,
            "action_cls": action_cls,
            "observation_cls": observation_cls,
            "names": agents,
            "_make": staticmethod(make),
            "_action_codecs": action_codecs,
            "_observation_codecs": observation_codecs,
            "__reference__": (_again, module, kwargs),
        },
    )
    return made


def _agents(game: Game, module: str) -> dict[str, Any]:
    try:
        agents = {str(agent): agent for agent in game.env.possible_agents}
    except AttributeError:
        agents = {}
    if not agents:
        raise UsageError(
            f"pettingzoo:{module} has no `possible_agents`: without them nobody can say what an action may be"
        )
    if len(agents) < len(game.env.possible_agents):
        raise UsageError(f"pettingzoo:{module} has agents that are called alike: {game.env.possible_agents}")
    return agents


def _description(module: str, game: Game) -> str:
    documentation = inspect.cleandoc(vars(type(game.env.unwrapped)).get("__doc__") or "")
    summary = " ".join(documentation.split("\n\n")[0].split())
    how = "act side by side" if isinstance(game, SideBySide) else "take turns"
    return f"{module}: {summary or 'An environment of PettingZoo.'} Its agents {how}."


def _again(module: str, kwargs: dict[str, Any]) -> type[PettingZooEnvironment]:
    """The class that another process serves; made once in this one."""
    key = repr((module, kwargs))
    if key not in _made:
        _made[key] = pettingzoo_environment(module, **kwargs)
    return _made[key]


def _action_again(module: str, kwargs: dict[str, Any]) -> type[PettingZooAction]:
    return _again(module, kwargs).action_cls


_made: dict[str, type[PettingZooEnvironment]] = {}
