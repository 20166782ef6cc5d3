"""The types of an environment, read from its class or factory without making an instance."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from .._introspection import type_arguments, unwrap_partial
from ..environment import Environment
from ..errors import UsageError
from ..types import Action, Observation, State


class DeclaredTypes(NamedTuple):
    """The types of an environment; None for an unknown type.

    Attributes:
        reset_observation_cls: The type that `reset` returns, if its annotation is narrower than `observation_cls`.
    """

    action_cls: Any = None
    observation_cls: Any = None
    state_cls: Any = State
    reset_observation_cls: Any = None

    def complete(self, environment: Any, what: str) -> dict[str, Any]:
        """These types as arguments of `EnvironmentServer`, if action and observation are known.

        Args:
            environment: The class or function with these types.
            what: The beginning of the message.

        Raises:
            UsageError: One of them is not known. The message explains how to declare it.
        """
        unknown = [kind for kind in ("action", "observation") if getattr(self, f"{kind}_cls") is None]
        if not unknown:
            return self._asdict()
        made = unwrap_partial(environment)
        name = getattr(made, "__name__", None) or repr(made)
        arguments = ", ".join(f"{kind}=My{kind.capitalize()}" for kind in unknown)
        declaration = f"class {name}(Environment[MyAction, MyObservation, State])"
        if not inspect.isclass(made):
            declaration = "a function with a return annotation, def make() -> MyEnvironment"
        raise UsageError(
            f"{what}: the types of {name} are not declared: write {declaration}, or pass {arguments} to create_app"
        )


def declared_types(environment: Callable[..., Any]) -> DeclaredTypes:
    """The types of `Environment[A, O, S]`, or else of the annotations of `step`, `reset` and `state`.

    Args:
        environment: An environment class, `functools.partial` of one, or a function with a return annotation.
    """
    made = unwrap_partial(environment)
    if not inspect.isclass(made):
        made = _hints(made).get("return")
    if get_origin(made) is Environment:
        return DeclaredTypes(*get_args(made))
    if not inspect.isclass(made):
        return DeclaredTypes()
    arguments = type_arguments(made, Environment)
    action, observation, state = arguments if len(arguments) == 3 else (*_types_of_step(made), State)
    if state is Any and isinstance(known := inspect.getattr_static(made, "state", None), property):
        state = _hints(known.fget).get("return", Any)
    begins = _hints(getattr(made, "reset", None)).get("return")
    narrower = inspect.isclass(begins) and issubclass(begins, Observation) and begins is not Observation
    return DeclaredTypes(action, observation, state, begins if narrower else None)


def _types_of_step(cls: type[Any]) -> tuple[Any, Any]:
    step = getattr(cls, "step", None)
    if not callable(step):
        return None, None
    hints, names = _hints(step), list(inspect.signature(step).parameters)
    action = hints.get(names[1]) if len(names) > 1 else None
    observation = hints.get("return")
    return (
        action if inspect.isclass(action) and issubclass(action, Action) else None,
        observation if inspect.isclass(observation) and issubclass(observation, Observation) else None,
    )


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # an annotation that only a type checker can resolve, or not a function
        return {}
