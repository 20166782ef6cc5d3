"""Values in messages: finite rewards, plain values, and the conversion of all other values."""

from __future__ import annotations

import dataclasses
import functools
import types
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from math import isfinite
from types import GeneratorType, NoneType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import msgspec
from annotated_types import BaseMetadata, GroupedMetadata
from pydantic import BaseModel, PlainSerializer, WrapSerializer
from pydantic.fields import FieldInfo
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import is_typeddict

from ..errors import StepFailed
from .arrays import ArrayDeclaration, is_array, is_numpy_scalar, list_of


def finite_reward(reward: Any) -> bool | int | float:
    """A reward as a plain number.

    Raises:
        StepFailed: It is NaN, infinite or not a number.
    """
    try:
        number = float(reward)  # also for subclasses, such as numpy.float64, and numbers of other libraries
    except (TypeError, ValueError, OverflowError) as error:
        raise StepFailed(
            f"the reward is a {type(reward).__name__} that cannot be sent: it must be a finite number or None"
        ) from error
    if not isfinite(number):
        raise StepFailed(f"the reward is {number}: it must be a finite number or None")
    if isinstance(reward, int):
        return reward if type(reward) is bool or type(reward) is int else int(reward)
    return number


SCALARS = frozenset({NoneType, bool, int, float, str})

DOLLAR = ord("$")
"""The first byte of each mark. Searching for one byte takes a tenth of the time of searching for several."""


def encode_plain(value: Any, inf_nan_mode: Literal["constants", "strings"] = "constants") -> bytes:
    """Encodes a plain value as JSON, in which NaN and infinity are the words NaN, Infinity and -Infinity.

    Args:
        value: The value.
        inf_nan_mode: Write these words unquoted, which is not valid JSON, or as strings.

    Raises:
        TypeError, ValueError, RecursionError: It is not plain after all, or has a string that is not valid Unicode.
    """
    text = encode_json(value)
    # msgspec writes NaN as null too. If there are more nulls than None, the slower encoder tells them apart.
    if text.rfind(b"null") >= 0 and text.count(b"null") != _nones(value):  # `in` and `count` take four times as long
        return to_json(value, inf_nan_mode=inf_nan_mode)
    return text


def _nones(value: Any) -> int:
    """The number of None in the upper two levels of a dict."""
    if type(value) is not dict:
        return 0
    members = list(value.values())
    return members.count(None) + sum(list(inner.values()).count(None) for inner in members if type(inner) is dict)


encode_json = msgspec.json.Encoder().encode


_SCALAR_TYPES = frozenset({None, types.NoneType, bool, int, float, str, bytes})
_ARRAYS = frozenset({("numpy", "ndarray"), ("torch", "Tensor")})
_CONTAINERS = frozenset({list, tuple, dict, Mapping, Sequence})


@functools.cache
def is_plain_model(cls: type[BaseModel]) -> bool:
    """Whether instances are encoded field by field, each under its name and according to its value.

    The model has no serializers, computed fields, aliases, excluded fields or extra fields, and no declared type that
    may have its own encoding, such as another model, which is encoded as declared.
    """
    decorators = cls.__pydantic_decorators__
    if decorators.field_serializers or decorators.model_serializers or decorators.computed_fields:
        return False
    if cls.__pydantic_root_model__ or cls.model_config.get("extra") == "allow":
        return False
    if any(isinstance(value, functools.cached_property) for base in cls.__mro__ for value in vars(base).values()):
        return False  # it adds entries to the instance's dict that are not fields
    own = cls.__mro__[: cls.__mro__.index(BaseModel)]
    if any("__get_pydantic_core_schema__" in vars(base) for base in own):
        return False
    return all(
        not (field.alias or field.serialization_alias or field.exclude or getattr(field, "exclude_if", None))
        and all(map(_is_constraint, field.metadata))
        and _is_plain_type(field.annotation)
        for field in cls.model_fields.values()
    )


def _is_plain_type(annotation: Any) -> bool:
    if annotation in _SCALAR_TYPES or annotation is Any or annotation is object or annotation in _CONTAINERS:
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return all(type(value) in _SCALAR_TYPES for value in arguments)
    if origin in {Annotated, NotRequired, Required}:
        return all(map(_is_constraint, arguments[1:])) and _is_plain_type(arguments[0])
    if origin in _CONTAINERS or origin is Union or origin is types.UnionType:
        return all(argument is Ellipsis or _is_plain_type(argument) for argument in arguments)
    if is_typeddict(annotation):
        return all(map(_is_plain_type, get_type_hints(annotation, include_extras=True).values()))
    kind = origin or annotation
    return isinstance(kind, type) and (kind.__module__, kind.__name__) in _ARRAYS


def has_own_forms(declared: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether a model, or a model inside it, has its own JSON form: serializers, or bytes as base64."""
    parts = [*get_args(declared), *getattr(declared, "__metadata__", ())]
    if isinstance(declared, (PlainSerializer, WrapSerializer)):
        return True
    if isinstance(declared, type) and issubclass(declared, BaseModel) and declared not in seen:
        decorators = declared.__pydantic_decorators__
        own = decorators.field_serializers or decorators.model_serializers
        if own or declared.model_config.get("ser_json_bytes", "utf8") != "utf8":
            return True
        seen |= {declared}
        for field in declared.model_fields.values():
            parts += [field.annotation, *field.metadata]
    return any(has_own_forms(part, seen) for part in parts)


def is_tight(annotation: Any) -> bool:
    """Whether a plain type only admits plain values, and values that msgspec refuses."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return is_tight(arguments[0])
    if origin is dict:
        return arguments[0] is str and is_tight(arguments[1])
    if origin in {list, tuple, Union, types.UnionType}:
        return all(argument is Ellipsis or is_tight(argument) for argument in arguments)
    return origin is Literal or (annotation in _SCALAR_TYPES and annotation is not bytes)


def _is_constraint(fact: Any) -> bool:
    """Whether metadata in an annotation only restricts values. Other metadata may contain a serializer.

    That of an `Array` is for JSON; encoders have their own (`coercion.forms_of`).
    """
    if isinstance(fact, FieldInfo):  # the metadata of a member of a union, as in `Observation.reward`
        return all(map(_is_constraint, fact.metadata))
    # `Field(pattern=...)` and the like become the last of these classes.
    if isinstance(fact, (BaseMetadata, GroupedMetadata, str, ArrayDeclaration)):
        return True
    return type(fact).__module__.endswith("._fields")


# The exceptions of encoders for a value that they cannot encode.
UNWRITABLE = (TypeError, ValueError, RecursionError, OverflowError)

_BYTES = (bytes, bytearray, memoryview)
_LISTS = (list, tuple, Set, deque, GeneratorType)


@dataclasses.dataclass(frozen=True, slots=True)
class Portable:
    """Converts values for one codec, which decides how it marks bytes and arrays.

    Attributes:
        of_bytes, of_array, of_map: Convert bytes, an array, and a dict of portable values.
    """

    of_bytes: Callable[[bytes], Any]
    of_array: Callable[[Any], Any]
    of_map: Callable[[dict[str, Any]], Any]

    def __call__(self, value: Any) -> Any:
        """The portable form of a value.

        Raises:
            TypeError, ValueError, RecursionError, OverflowError: It has no portable form (`UNWRITABLE`).
        """
        if type(value) in SCALARS:
            return value
        if isinstance(value, BaseModel):
            return self(fields_of(value))
        if isinstance(value, Mapping):
            return self.of_map({_key(key): self(content) for key, content in value.items()})
        if isinstance(value, _LISTS):
            return [self(content) for content in value]
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, _BYTES):
            return self.of_bytes(bytes(value))
        if is_array(value):
            return self.of_array(value)
        if is_numpy_scalar(value):
            return self(value.item())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.of_map({field.name: self(getattr(value, field.name)) for field in dataclasses.fields(value)})
        return to_jsonable_python(value, inf_nan_mode="constants")


def fields_of(model: BaseModel) -> Any:
    """A model dumped for JSON, except that bytes and arrays are left unchanged.

    Returns:
        Its fields, or another value if the model has a serializer that returns one.

    Raises:
        ValueError: A serializer failed, or a field has no JSON form.
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
    """The fields of a mapping, a dataclass or another object: the attributes without a leading underscore.

    Raises:
        TypeError: It has no fields.
    """
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    slots: list[str] = []
    for base in type(value).__mro__:
        named = vars(base).get("__slots__", ())
        slots += (named,) if isinstance(named, str) else named
    if not slots and not hasattr(value, "__dict__"):
        raise TypeError(f"{type(value).__name__} is not an Observation, a mapping or an object with fields")
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    attributes.update(getattr(value, "__dict__", {}))
    return {name: content for name, content in attributes.items() if not name.startswith("_")}


def _text_or_mark(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"$bytes": b64encode(data).decode()}


portable_v1 = Portable(_text_or_mark, list_of, dict)
"""For protocol v1: arrays as nested lists, bytes as the text that they encode, or marked if they are not UTF-8."""


def holds_binary(value: Any) -> bool:
    """Whether a value contains bytes or numbers that pydantic would change when it dumps them for JSON."""
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
