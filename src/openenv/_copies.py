"""Deep copies of environments: the default of `save_state` and `load_state`."""

from __future__ import annotations

import gc
from copy import deepcopy
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

from .errors import NotForkable

# Classes whose copies were found to be independent. The check is slower than a copy, so it runs once per class.
_sound: WeakSet[type[Any]] = WeakSet()
_MOST_OBJECTS = 200_000


def deep_copy_of(environment: Any) -> Any:
    """A deep copy of an environment, or of the result of its `save_state`.

    Raises:
        NotForkable: An attribute cannot be copied, or its copy would still use the original; the message names it.
    """
    kind = type(environment)
    try:
        copy = deepcopy(environment)
    except NotForkable:
        raise
    except Exception as error:
        raise NotForkable(
            f"{kind.__name__} cannot be forked: {_culprit(environment)}cannot be copied ({error}): implement "
            "save_state() and load_state() without it"
        ) from error
    if kind not in _sound:
        # A closure is not copied, so the copy would use and change the original.
        for name, value in getattr(copy, "__dict__", {}).items():
            if _leads_to(value, environment):
                raise NotForkable(
                    f"{kind.__name__} cannot be forked: its attribute {name!r} holds a function made in one of its "
                    "methods, which still uses the original: implement save_state() and load_state(), which leave "
                    "it out"
                )
        _sound.add(kind)
    return copy


def become_copy_of(environment: Any, other: Any) -> None:
    """Turns an environment into a copy of another one of its class. The other one is unchanged.

    Raises:
        NotForkable: The other environment has another class.
    """
    if type(other) is not type(environment):
        name = type(environment).__name__
        raise NotForkable(f"{name} cannot load the state of a {type(other).__name__}: implement load_state()")
    # References to the other one become references to this one in the copy.
    attributes, slots = deepcopy(_state_of(other), {id(other): environment})
    for name in _state_of(environment)[1]:
        delattr(environment, name)
    for name, value in slots.items():
        setattr(environment, name, value)
    if hasattr(environment, "__dict__"):
        vars(environment).clear()
        vars(environment).update(attributes)


def _state_of(environment: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its attributes, from its `__dict__` and from the slots of its class."""
    state = object.__getstate__(environment)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return attributes or {}, slots or {}


def _leads_to(value: Any, wanted: Any) -> bool:
    """Whether an object is reachable from another one, through its contents and the closures of its functions."""
    seen, pending = {id(value)}, [value]
    while pending and len(seen) < _MOST_OBJECTS:
        value = pending.pop()
        if isinstance(value, FunctionType):  # not its globals
            members = [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
        else:
            members = [] if isinstance(value, (type, ModuleType)) else gc.get_referents(value)
        for held in members:
            if held is wanted:
                return True
            if id(held) not in seen and gc.is_tracked(held):
                seen.add(id(held))
                pending.append(held)
    return False


def _culprit(environment: Any) -> str:
    """The attribute that cannot be copied, as the beginning of a clause."""
    for name, value in getattr(environment, "__dict__", {}).items():
        try:
            deepcopy(value)
        except Exception:  # noqa: BLE001 - foreign code: a copied object may raise any exception
            return f"its attribute {name!r}, of type {type(value).__name__}, "
    return "it "
