"""Values as messages can say them: what anybody's code may hold, made of maps with text keys, lists and scalars."""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from types import GeneratorType
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from .binary import is_array, is_numpy_scalar, list_of
from .plain import SCALARS
from .plan import is_plain_model

__all__ = ["UNWRITABLE", "Portable", "fields_of", "holds_binary", "mapping_of", "portable_v1"]

# What the code that writes a value raises when it cannot.
UNWRITABLE = (TypeError, ValueError, RecursionError, OverflowError)

_BYTES = (bytes, bytearray, memoryview)
_LISTS = (list, tuple, Set, deque, GeneratorType)


class Portable:
    """Makes values portable for one codec, which says how it marks bytes and arrays.

    Args:
        of_bytes, of_array, of_map: What stands for bytes, for an array, and for a dict whose values are portable.
    """

    def __init__(
        self,
        of_bytes: Callable[[bytes], Any],
        of_array: Callable[[Any], Any],
        of_map: Callable[[dict[str, Any]], Any],
    ):
        self._of_bytes = of_bytes
        self._of_array = of_array
        self._of_map = of_map

    def __call__(self, value: Any) -> Any:
        """The portable form of a value.

        Raises:
            TypeError, ValueError, RecursionError, OverflowError: It has none (`UNWRITABLE`).
        """
        if type(value) in SCALARS:
            return value
        if isinstance(value, BaseModel):
            return self(fields_of(value))
        if isinstance(value, Mapping):
            return self._of_map({_key(key): self(content) for key, content in value.items()})
        if isinstance(value, _LISTS):
            return [self(content) for content in value]
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, _BYTES):
            return self._of_bytes(bytes(value))
        if is_array(value):
            return self._of_array(value)
        if is_numpy_scalar(value):
            return self(value.item())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._of_map({field.name: self(getattr(value, field.name)) for field in dataclasses.fields(value)})
        return to_jsonable_python(value, inf_nan_mode="constants")


def fields_of(model: BaseModel) -> Any:
    """A model as it writes itself for JSON, except that bytes and arrays stay what they are.

    Returns:
        Its fields, unless the model has a serializer that makes something else of it.

    Raises:
        ValueError: A serializer failed, or a field has no form in JSON.
    """
    cls = type(model)
    if is_plain_model(cls):
        return model.__dict__
    dump = model.__pydantic_serializer__.to_python
    if cls.__pydantic_decorators__.model_serializers or cls.__pydantic_root_model__:
        try:
            return dump(model, mode="json", warnings=False)
        except ValueError:
            return dump(model, mode="python", warnings=False)
    contents = {**model.__dict__, **(model.__pydantic_extra__ or {})}
    binary = {name for name, content in contents.items() if holds_binary(content)}
    fields = dump(model, mode="json", exclude=binary, warnings=False)
    if binary:
        fields |= dump(model, mode="python", include=binary, warnings=False)
    return fields


def mapping_of(value: Any) -> Mapping[str, Any]:
    """The fields of a mapping, a dataclass or another object: its attributes without an underscore before them.

    Raises:
        TypeError: It has none.
    """
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    slots = [name for base in type(value).__mro__ for name in _names(vars(base).get("__slots__", ()))]
    if not slots and not hasattr(value, "__dict__"):
        raise TypeError(f"{type(value).__name__} is no Observation, mapping or object with fields")
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    attributes.update(getattr(value, "__dict__", {}))
    return {name: content for name, content in attributes.items() if not name.startswith("_")}


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _text_or_mark(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"$bytes": b64encode(data).decode()}


portable_v1 = Portable(_text_or_mark, list_of, dict)
"""For protocol v1: arrays as nested lists, bytes as the text that they are, or marked where they are none."""


def holds_binary(value: Any) -> bool:
    """Whether a value holds what pydantic would not write for JSON as the bytes or numbers that they are."""
    if type(value) in SCALARS:
        return False
    if isinstance(value, BaseModel):
        return any(map(holds_binary, value.__dict__.values()))
    if isinstance(value, Mapping):
        return any(map(holds_binary, value.values()))
    if isinstance(value, (list, tuple, Set, deque)):
        return any(map(holds_binary, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(holds_binary(getattr(value, field.name)) for field in dataclasses.fields(value))
    return isinstance(value, _BYTES) or is_array(value) or is_numpy_scalar(value)


def _key(key: Any) -> str:
    if type(key) is str:
        return key
    if is_numpy_scalar(key):
        key = key.item()
    (text,) = to_jsonable_python({key: None})
    return str(text)
