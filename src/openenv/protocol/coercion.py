"""Converts lists, numbers and marked objects to the arrays, tensors and bytes that a type declares."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableSequence, MutableSet, Sequence, Set
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from typing_extensions import TypeAliasType, is_typeddict

from .arrays import is_array, is_tensor
from .codecs import unmarked

# Returns the very value, not a copy, where there is nothing to lift in it.
Coercer = Callable[[Any], Any]

_LISTS = (list, tuple, set, frozenset, deque, Sequence, MutableSequence, Set, MutableSet, Iterable)
_MAPPINGS = (dict, Mapping)
_NUMBERS = frozenset("biufc")


def coercer_of(declared: Any) -> Coercer | None:
    """What lifts values of a declared type; None if there is nothing in it that would need it.

    Found out once for each type, when a reader of such values is made.
    """
    return _coercer(declared, {})


def _coercer(declared: Any, within: dict[Any, _Fields]) -> Coercer | None:
    if isinstance(declared, TypeAliasType):
        return _coercer(declared.__value__, within)
    origin, arguments = get_origin(declared) or declared, get_args(declared)
    if origin is Annotated:
        return _coercer(arguments[0], within)
    for kinds, combined in _COMBINED:
        if origin in kinds:
            return combined([None if part is Ellipsis else _coercer(part, within) for part in arguments], arguments)
    return _leaf(origin, arguments) or _of_fields(origin, within)


def _leaf(origin: Any, arguments: tuple[Any, ...]) -> Coercer | None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if not isinstance(origin, type):
        return None
    if origin is bytes:
        return _bytes
    if numpy is not None and issubclass(origin, numpy.ndarray):
        element = next(iter(get_args(arguments[1])), None) if len(arguments) == 2 else None
        concrete = isinstance(element, type) and element.__module__ == "numpy" and not element.__subclasses__()
        return partial(_array, numpy, element if concrete else None)
    if numpy is not None and issubclass(origin, numpy.number):
        return partial(_number, origin)
    if torch is not None and issubclass(origin, torch.Tensor):
        return partial(_tensor, torch)
    return None


def _bytes(value: Any) -> Any:
    return _unmarked(value, "$bytes")


def _array(numpy: Any, dtype: Any, value: Any) -> Any:
    value = _unmarked(value, "$array")
    if is_tensor(value):  # bfloat16, of which numpy knows nothing
        return value
    if not isinstance(value, (list, int, float)):
        return value
    try:
        array = numpy.asarray(value, dtype)
    except (ValueError, TypeError, OverflowError):  # ragged, or no numbers: validation says so
        return value
    return array if array.dtype.kind in _NUMBERS else value


def _number(kind: Any, value: Any) -> Any:
    return kind(value) if type(value) in {int, float} else value


def _tensor(torch: Any, value: Any) -> Any:
    value = _unmarked(value, "$array")
    if is_tensor(value) or not (is_array(value) or isinstance(value, (list, int, float))):
        return value
    try:
        return torch.from_numpy(value) if is_array(value) else torch.tensor(value)
    except (ValueError, TypeError, RuntimeError):
        return value


def _unmarked(value: Any, mark: str) -> Any:
    if not isinstance(value, dict) or value.keys() != {mark}:
        return value
    try:
        return unmarked(value)
    except ValueError:
        return value


def _union(lifters: list[Coercer | None], _: tuple[Any, ...]) -> Coercer | None:
    """The first alternative that makes something else of a value."""
    able = [lifter for lifter in lifters if lifter is not None]

    def lift(value: Any) -> Any:
        return next((lifted for lifter in able if (lifted := lifter(value)) is not value), value)

    return lift if able else None


def _mapping(lifters: list[Coercer | None], _: tuple[Any, ...]) -> Coercer | None:
    lifter = lifters[1] if len(lifters) == 2 else None

    def lift(mapping: Any) -> Any:
        if lifter is None or not isinstance(mapping, Mapping):
            return mapping
        lifted = {key: lifter(value) for key, value in mapping.items()}
        return mapping if all(lifted[key] is mapping[key] for key in lifted) else lifted

    return lift if lifter is not None else None


def _list(lifters: list[Coercer | None], arguments: tuple[Any, ...]) -> Coercer | None:
    """Of lists and the like, whose members are all declared alike, and of tuples, where each has its place."""
    alike = Ellipsis in arguments or len(arguments) == 1

    def lift(values: Any) -> Any:
        if not isinstance(values, (list, tuple)) or not (alike or len(values) == len(lifters)):
            return values
        each = lifters[:1] * len(values) if alike else lifters
        lifted = [value if lifter is None else lifter(value) for value, lifter in zip(values, each, strict=True)]
        return values if all(new is old for new, old in zip(lifted, values, strict=True)) else lifted

    return lift if any(lifters) else None


_COMBINED: list[tuple[tuple[Any, ...], Callable[[list[Coercer | None], tuple[Any, ...]], Coercer | None]]] = [
    ((Union, UnionType), _union),
    (_MAPPINGS, _mapping),
    (_LISTS, _list),
]


class _Fields:
    """Lifts the fields of a model, a dataclass or a typed dict.

    Attributes:
        lifters: By the names under which the fields come.
    """

    def __init__(self) -> None:
        self.lifters: dict[str, Coercer] = {}

    def __call__(self, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        lifted = {name: lifter(values[name]) for name, lifter in self.lifters.items() if name in values}
        changed = {name: value for name, value in lifted.items() if value is not values[name]}
        return {**values, **changed} if changed else values


def _of_fields(cls: Any, within: dict[Any, _Fields]) -> Coercer | None:
    if not isinstance(cls, type):
        return None
    if cls in within:  # it holds its own like
        return within[cls]
    declared = _declared(cls)
    if not declared:
        return None
    fields = within[cls] = _Fields()
    for names, annotation in declared:
        lifter = _coercer(annotation, within)
        if lifter is not None:
            fields.lifters.update(dict.fromkeys(names, lifter))
    return fields if fields.lifters else None


def _declared(cls: type[Any]) -> list[tuple[list[str], Any]]:
    """The names of each field and its type; none for what has no fields, or some that cannot be made out."""
    if issubclass(cls, BaseModel):
        return [
            (
                [name, *(each for each in (field.alias, field.validation_alias) if isinstance(each, str))],
                field.annotation,
            )
            for name, field in cls.model_fields.items()
        ]
    if not (dataclasses.is_dataclass(cls) or is_typeddict(cls)):
        return []
    try:
        return [([name], annotation) for name, annotation in get_type_hints(cls).items()]
    except (NameError, TypeError):
        return []
