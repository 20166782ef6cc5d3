"""Helpers for served Gymnasium and PettingZoo environments: frames, reset arguments, `info` as JSON, copies."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Container, Iterator, Mapping
from types import GenericAlias
from typing import Any, TypeVar

import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray
from pydantic import create_model

from ..environment import Environment
from ..errors import InvalidAction
from ..images import RenderedImage

# Larger pictures are downsampled: the page is not wider, and limits the total size.
MOST_PIXELS = 1024
MOST_BYTES = 2 * 1024 * 1024


def as_html(rendered: Any) -> str | None:
    """The result of `render()` as HTML.

    Args:
        rendered: A frame (an array of height x width, with 1 to 4 channels or none), a list of frames, of which
            the last is shown, or text.

    Returns:
        A picture, or the text; None if there is nothing to show.

    Raises:
        ValueError: An array has another shape.
        MissingExtra: Pillow is not installed.
    """
    if isinstance(rendered, list | tuple):
        return as_html(rendered[-1]) if rendered else None
    if isinstance(rendered, str):
        return f"<pre>{html.escape(rendered)}</pre>"
    if not isinstance(rendered, np.ndarray):
        return None
    frame = _eight_bits(rendered)
    step = max(1, -(-max(frame.shape[:2]) // MOST_PIXELS))
    image = RenderedImage.of(frame[::step, ::step])
    while len(image.data) > MOST_BYTES:
        step *= 2
        image = RenderedImage.of(frame[::step, ::step])
    return f'<img alt="the environment" style="max-width: 100%" src="{image.data_url()}">'


def _eight_bits(frame: NDArray[Any]) -> NDArray[np.uint8]:
    """Converts a frame with channels to uint8. Floats are shares of full brightness."""
    if frame.ndim == 2:
        frame = frame[:, :, np.newaxis]
    if frame.ndim != 3 or frame.shape[2] not in {1, 2, 3, 4} or 0 in frame.shape:
        raise ValueError(f"render() returned an array of shape {frame.shape}, which is not a picture")
    if frame.shape[2] == 2:  # grey and transparency
        frame = frame[:, :, [0, 0, 0, 1]]
    if frame.dtype == np.bool_ or frame.dtype.kind == "f":
        frame = np.clip(np.nan_to_num(frame.astype(np.float64)), 0, 1) * 255
    bytes_alone: NDArray[np.uint8] = np.clip(frame, 0, 255).astype(np.uint8)
    return bytes_alone


def served_class(
    name: str,
    base: type[Any],
    models: tuple[type[Any], type[Any], type[Any]],
    action: dict[str, Any],
    observation: dict[str, Any],
    reference: tuple[Callable[..., Any], str, dict[str, Any]],
    **members: Any,
) -> Any:
    """A class that serves one environment, with its types.

    Args:
        name: Name of the class.
        base: Its base class.
        models: The base classes of its actions and observations, and its state class.
        action: The types of the fields of its actions, as for pydantic's `create_model`.
        observation: The types of the fields of its observations.
        reference: The function that makes the class, its argument and its keyword arguments. Another process makes
            the class and its action from them, since no module has them (`openenv.runtime.process`).
        members: Further attributes of the class.
    """
    action_cls, observation_cls = (
        create_model(f"{name}_{kind}", __base__=model, __module__=base.__module__, **fields)
        for kind, model, fields in (("Action", models[0], action), ("Observation", models[1], observation))
    )
    action_cls.__reference__ = (_remake_action, *reference)
    return type(
        name,
        (base,),
        {
            "__module__": base.__module__,
            # The type arguments, where a class statement would put them (PEP 560).
            "__orig_bases__": (GenericAlias(Environment, (action_cls, observation_cls, models[2])),),
            "action_cls": action_cls,
            "observation_cls": observation_cls,
            "__reference__": (_remake, *reference),
            **members,
        },
    )


_class_cache: dict[str, Any] = {}


def _remake(make: Callable[..., Any], target: str, kwargs: dict[str, Any]) -> Any:
    """Makes the class that another process serves, once in this process."""
    key = repr((make.__qualname__, target, kwargs))
    if key not in _class_cache:
        _class_cache[key] = make(target, **kwargs)
    return _class_cache[key]


def _remake_action(make: Callable[..., Any], target: str, kwargs: dict[str, Any]) -> Any:
    return _remake(make, target, kwargs).action_cls


def check_reset_arguments(seed: Any, options: Any) -> None:
    """Rejects a seed or options of a type that Gymnasium and PettingZoo do not allow.

    Raises:
        InvalidAction: The seed is neither None nor an integer of at least 0, or the options are not a dict.
    """
    if seed is not None and (type(seed) is not int or seed < 0):
        raise InvalidAction(f"seed is {seed!r}: it must be an integer of at least 0, or null")
    if options is not None and not isinstance(options, dict):
        raise InvalidAction(f"options is {options!r}: it must be an object, or null")


_PLAIN = frozenset({bool, int, float, str})


def plain(value: Any) -> Any:
    """Converts a value for JSON: arrays to lists, numpy's numbers to Python's, unknown objects to strings."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):
        items = value.tolist()
        if value.dtype.kind in "biuf" and not isinstance(items, np.generic):
            return items
        # `tolist` returns a longdouble unchanged, since Python has no such type.
        return str(items) if isinstance(items, np.generic) else plain(items)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float | str) else str(value)


Copied = TypeVar("Copied")

# Surfaces, clocks and fonts of pygame do not support `copy`; every environment that has rendered holds some.
_DRAWING = "pygame."
_INNER = ("env", "aec_env")


def duplicate(environment: Copied, inner: Any, memo: dict[int, Any], shared: Container[str] = ()) -> Copied:
    """A deep copy of an environment that wraps another one, with the state of its random numbers.

    Args:
        environment: The environment to copy.
        inner: The wrapped environment, with its own wrappers.
        memo: The memo of `copy.deepcopy`.
        shared: Attributes of `environment` that stay the same objects.

    Raises:
        TypeError: An object that the environment holds cannot be copied.
    """
    layers = list(_layers(inner))
    for part in (part for layer in layers for part in _drawn_with(vars(layer), 3)):
        memo[id(part)] = part.copy() if hasattr(part, "get_rect") else part
    # EzPickle would copy these by calling their constructors again.
    renewed = [layer for layer in layers if isinstance(layer, EzPickle)]
    for layer in renewed:
        memo[id(layer)] = object.__new__(type(layer))
    made: Copied = object.__new__(type(environment))
    memo[id(environment)] = made
    for name, value in vars(environment).items():
        vars(made)[name] = value if name in shared else copy.deepcopy(value, memo)
    for layer in renewed:
        vars(memo[id(layer)]).update(copy.deepcopy(vars(layer), memo))
    return made


def _layers(inner: Any) -> Iterator[Any]:
    """An environment and all environments that it wraps."""
    yield inner
    for name in _INNER:
        if name in vars(inner):
            yield from _layers(vars(inner)[name])


def _drawn_with(value: Any, depth: int) -> Iterator[Any]:
    if f"{type(value).__module__}.".startswith(_DRAWING):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _drawn_with(part, depth - 1)
