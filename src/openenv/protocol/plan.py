"""Which models need no serializer: those that say nothing about how they are written.

Nearly all observation classes are like that, and for them the instance's own dict is what has to be sent. It is
found out once for each class; what the fields hold has to be looked at each time (`plain.is_plain`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import BaseMetadata, GroupedMetadata
from pydantic import BaseModel, PlainSerializer, WrapSerializer
from pydantic.fields import FieldInfo

from .plain import is_plain

__all__ = ["ObservationPlan", "has_own_forms", "is_plain_model", "is_tight", "plan_of"]

_SCALARS = frozenset({None, types.NoneType, bool, int, float, str, bytes})
_ARRAYS = frozenset({("numpy", "ndarray"), ("torch", "Tensor")})
_CONTAINERS = frozenset({list, tuple, dict, Mapping, Sequence})


class ObservationPlan(NamedTuple):
    """What has to be known of an observation class to write its instances without pydantic.

    Attributes:
        width: Fields of the class, `reward` and `done` included.
        loose: Names of the fields whose declared type lets in what encoders write in different ways (`Any`, bytes,
            arrays). All others hold plain values, or what msgspec refuses to write.
        has_terminated: Whether it has a field `terminated: bool`.
    """

    width: int
    loose: tuple[str, ...]
    has_terminated: bool

    def fields(self, observation: Any) -> dict[str, Any] | None:
        """A new dict of all fields, `reward` and `done` included; None for an instance that is not as declared."""
        fields: dict[str, Any] = observation.__dict__
        return fields.copy() if len(fields) == self.width else None

    def is_plain(self, fields: dict[str, Any]) -> bool:
        """Whether these fields of an instance are plain (`plain.is_plain`), or else refused by msgspec."""
        for name in self.loose:
            value = fields[name]
            if type(value) is dict and not value:
                continue
            if not is_plain(value):
                return False
        return True


@functools.cache
def plan_of(cls: type[Any]) -> ObservationPlan | None:
    """The plan of a class; None for one that is no plain model with `reward` and `done`."""
    if not issubclass(cls, BaseModel) or not {"reward", "done"} <= set(cls.model_fields) or not is_plain_model(cls):
        return None
    fields = cls.model_fields
    terminated = fields.get("terminated")
    return ObservationPlan(
        width=len(fields),
        loose=tuple(
            name
            for name, field in fields.items()
            if name not in {"reward", "done"} and not is_tight(field.annotation)
        ),
        has_terminated=terminated is not None and terminated.annotation is bool,
    )


@functools.cache
def is_plain_model(cls: type[BaseModel]) -> bool:
    """Whether instances are written field by field, each under its name and as its value says.

    No serializers, computed fields, aliases, excluded or further fields; and no type among those declared that
    might write itself in a way of its own, such as another model, which is written as declared.
    """
    decorators = cls.__pydantic_decorators__
    if decorators.field_serializers or decorators.model_serializers or decorators.computed_fields:
        return False
    if cls.__pydantic_root_model__ or cls.model_config.get("extra") == "allow":
        return False
    if any(isinstance(value, functools.cached_property) for base in cls.__mro__ for value in vars(base).values()):
        return False  # it puts into the instance's dict what is no field
    own = cls.__mro__[: cls.__mro__.index(BaseModel)]
    if any("__get_pydantic_core_schema__" in vars(base) for base in own):
        return False
    return all(map(_is_plain_field, cls.model_fields.values()))


def _is_plain_field(field: FieldInfo) -> bool:
    if field.alias or field.serialization_alias or field.exclude or getattr(field, "exclude_if", None):
        return False
    return all(map(_is_constraint, field.metadata)) and _is_plain_type(field.annotation)


def _is_plain_type(annotation: Any) -> bool:
    if annotation in _SCALARS or annotation is Any or annotation is object or annotation in _CONTAINERS:
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return all(type(value) in _SCALARS for value in arguments)
    if origin is Annotated:
        return all(map(_is_constraint, arguments[1:])) and _is_plain_type(arguments[0])
    if origin in _CONTAINERS or origin is Union or origin is types.UnionType:
        return all(argument is Ellipsis or _is_plain_type(argument) for argument in arguments)
    return _is_array_type(origin or annotation)


def _is_array_type(annotation: Any) -> bool:
    return isinstance(annotation, type) and (annotation.__module__, annotation.__name__) in _ARRAYS


def has_own_forms(declared: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether a model, or one that it holds, has a form of its own in JSON: serializers, or bytes that are base64."""
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
    """Whether a type that is plain lets in nothing but plain values and what msgspec refuses."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return is_tight(arguments[0])
    if origin is dict:
        return arguments[0] is str and is_tight(arguments[1])
    if origin in {list, tuple, Union, types.UnionType}:
        return all(argument is Ellipsis or is_tight(argument) for argument in arguments)
    return origin is Literal or (annotation in _SCALARS and annotation is not bytes)


def _is_constraint(fact: Any) -> bool:
    """Whether a fact in an annotation only restricts values. Others may bring a serializer."""
    if isinstance(fact, FieldInfo):  # of a part of a union, as in `Observation.reward`
        return all(map(_is_constraint, fact.metadata))
    # The last is what `Field(pattern=...)` and the like become.
    return isinstance(fact, (BaseMetadata, GroupedMetadata, str)) or type(fact).__module__.endswith("._fields")
