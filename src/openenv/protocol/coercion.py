"""Converts values as a type declares them: lists and marked objects to arrays and bytes, and arrays to lists."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableSequence, MutableSet, Sequence, Set
from functools import cache, partial
from types import EllipsisType, UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from typing_extensions import TypeAliasType, is_typeddict

from .arrays import ArrayDeclaration, byte_size, is_array, is_tensor, list_of
from .codecs import unmarked

# Returns the same object, not a copy, if it contains nothing to convert.
Converter = Callable[[Any], Any]
# The converter of a type without parts; None if it needs none, `...` if the type has parts.
Leaf = Callable[[Any], "Converter | EllipsisType | None"]

_LISTS = (list, tuple, set, frozenset, deque, Sequence, MutableSequence, Set, MutableSet, Iterable)
_MAPPINGS = (dict, Mapping)
_NUMBERS = frozenset("biufc")


def coercer_of(declared: Any) -> Converter | None:
    """A function that coerces values of a declared type; None if the type needs none.

    Make it once for each type, together with the reader of its values.
    """
    return _converter(declared, _coercing, {})


@cache
def forms_of(declared: Any, list_bytes: float, compresses: bool) -> Converter | None:
    """A function that gives the arrays of a declared type the form that a codec sends; None if none changes.

    Args:
        declared: The type.
        list_bytes: Most bytes of an array that becomes nested lists (`Codec.list_bytes`).
        compresses: Whether an array with an `encoding` becomes an image file (`Codec.compresses`).
    """

    def listed(value: Any) -> Any:
        return list_of(value) if is_array(value) and byte_size(value) <= list_bytes else value

    def leaf(annotation: Any) -> Converter | EllipsisType | None:
        array = array_of(annotation)
        if array is None:
            return ...
        if compresses and array.encoding is not None:
            return array.compressed
        return listed if list_bytes >= 0 else None

    return _converter(declared, leaf, {})


def array_of(annotation: Any) -> ArrayDeclaration | None:
    """The `Array` of an annotation; None if it has none."""
    return next(
        (fact for fact in getattr(annotation, "__metadata__", ()) if isinstance(fact, ArrayDeclaration)), None
    )


def _converter(declared: Any, leaf: Leaf, within: dict[Any, Converter]) -> Converter | None:
    if isinstance(declared, TypeAliasType):
        return _converter(declared.__value__, leaf, within)
    found = leaf(declared)
    if found is not ...:
        return found
    origin, arguments = get_origin(declared) or declared, get_args(declared)
    if origin in {Annotated, NotRequired, Required}:
        return _converter(arguments[0], leaf, within)
    for kinds, combined in _COMBINED:
        if origin in kinds:
            parts = [None if part is Ellipsis else _converter(part, leaf, within) for part in arguments]
            return combined(parts, arguments)
    return _of_fields(origin, leaf, within) if isinstance(origin, type) else None


def _coercing(declared: Any) -> Converter | EllipsisType | None:
    """The coercer of an array, a tensor, a number of numpy, or bytes."""
    if array_of(declared) is not None:  # it reads lists and arrays itself
        return partial(_unmark, mark="$array")
    origin, arguments = get_origin(declared) or declared, get_args(declared)
    return (_leaf(origin, arguments) or ...) if isinstance(origin, type) else ...


def _leaf(origin: type[Any], arguments: tuple[Any, ...]) -> Converter | None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if origin is bytes:
        return partial(_unmark, mark="$bytes")
    if numpy is not None and issubclass(origin, numpy.ndarray):
        element = next(iter(get_args(arguments[1])), None) if len(arguments) == 2 else None
        concrete = isinstance(element, type) and element.__module__ == "numpy" and not element.__subclasses__()
        return partial(_array, numpy, element if concrete else None)
    if numpy is not None and issubclass(origin, numpy.number):
        return lambda value: origin(value) if type(value) in {int, float} else value
    if torch is not None and issubclass(origin, torch.Tensor):
        return partial(_tensor, torch)
    return None


def _array(numpy: Any, dtype: Any, value: Any) -> Any:
    value = _unmark(value, "$array")
    if is_tensor(value):  # bfloat16, which numpy does not support
        return value
    if not isinstance(value, (list, int, float)):
        return value
    try:
        array = numpy.asarray(value, dtype)
    except (ValueError, TypeError, OverflowError):  # ragged or not numbers: left to validation
        return value
    return array if array.dtype.kind in _NUMBERS else value


def _tensor(torch: Any, value: Any) -> Any:
    value = _unmark(value, "$array")
    if is_tensor(value) or not (is_array(value) or isinstance(value, (list, int, float))):
        return value
    try:
        return torch.from_numpy(value) if is_array(value) else torch.tensor(value)
    except (ValueError, TypeError, RuntimeError):
        return value


def _unmark(value: Any, mark: str) -> Any:
    if not isinstance(value, dict) or value.keys() != {mark}:
        return value
    try:
        return unmarked(value)
    except ValueError:
        return value


def _union(coercers: list[Converter | None], _: tuple[Any, ...]) -> Converter | None:
    """Coerces by the first alternative that changes the value."""
    able = [coercer for coercer in coercers if coercer is not None]

    def coerce(value: Any) -> Any:
        return next((coerced for coercer in able if (coerced := coercer(value)) is not value), value)

    return coerce if able else None


def _mapping(coercers: list[Converter | None], _: tuple[Any, ...]) -> Converter | None:
    coercer = coercers[1] if len(coercers) == 2 else None

    def coerce(mapping: Any) -> Any:
        if coercer is None or not isinstance(mapping, Mapping):
            return mapping
        coerced = {key: coercer(value) for key, value in mapping.items()}
        return mapping if all(coerced[key] is mapping[key] for key in coerced) else coerced

    return coerce if coercer is not None else None


def _list(coercers: list[Converter | None], arguments: tuple[Any, ...]) -> Converter | None:
    """Coerces lists and similar types, with one type for all members, and tuples, with a type for each member."""
    alike = Ellipsis in arguments or len(arguments) == 1

    def coerce(values: Any) -> Any:
        if not isinstance(values, (list, tuple)) or not (alike or len(values) == len(coercers)):
            return values
        each = coercers[:1] * len(values) if alike else coercers
        coerced = [value if coercer is None else coercer(value) for value, coercer in zip(values, each, strict=True)]
        return values if all(new is old for new, old in zip(coerced, values, strict=True)) else coerced

    return coerce if any(coercers) else None


_COMBINED: list[tuple[tuple[Any, ...], Callable[[list[Converter | None], tuple[Any, ...]], Converter | None]]] = [
    ((Union, UnionType), _union),
    (_MAPPINGS, _mapping),
    (_LISTS, _list),
]


def _of_fields(cls: type[Any], leaf: Leaf, within: dict[Any, Converter]) -> Converter | None:
    """Coerces the fields of a model, a dataclass or a typed dict."""
    if cls in within:  # a recursive type
        return within[cls]
    declared = _field_types(cls)
    if not declared:
        return None
    coercers: dict[str, Converter] = {}  # by the names of the fields in messages

    def coerce(values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        coerced = {name: coercer(values[name]) for name, coercer in coercers.items() if name in values}
        changed = {name: value for name, value in coerced.items() if value is not values[name]}
        return {**values, **changed} if changed else values

    within[cls] = coerce
    for names, annotation in declared:
        coercer = _converter(annotation, leaf, within)
        if coercer is not None:
            coercers.update(dict.fromkeys(names, coercer))
    return coerce if coercers else None


def _field_types(cls: type[Any]) -> list[tuple[list[str], Any]]:
    """The names and the type of each field; empty for a class without fields or with unresolvable types."""
    if issubclass(cls, BaseModel):
        return [
            (
                [name, *(each for each in (field.alias, field.validation_alias) if isinstance(each, str))],
                Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation,
            )
            for name, field in cls.model_fields.items()
        ]
    if not (dataclasses.is_dataclass(cls) or is_typeddict(cls)):
        return []
    try:
        return [([name], annotation) for name, annotation in get_type_hints(cls, include_extras=True).items()]
    except (NameError, TypeError):
        return []
