"""The fields of a batch of episodes: their columns, with a row for each episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NamedTuple, NotRequired, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from msgspec import NODEFAULT, Meta, Struct, defstruct
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, with_config
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict, is_typeddict

from ..arrays import Array
from ..errors import StepFailed, UsageError
from ..protocol.arrays import is_array, to_numpy
from ..protocol.values import SCALARS
from ..types import Action

_PLAIN = frozenset({int, float, bool, str})
_NUMBERS: dict[Any, str] = {int: "int64", float: "float64", bool: "bool"}
FACTS = frozenset({"terminated", "truncated"})
"""Fields that an observation may have. The methods of a batch return them beside the others."""
_APART = frozenset({"metadata", "reward", "done"})


class BatchField(NamedTuple):
    """One field of an action or an observation, in a batch.

    Attributes:
        name: Its name.
        array: The array of its values in all episodes, with `num_envs` as the first axis; None for a list.
        annotation: The type of its values in all episodes.
        required: Whether an action must have it.
        num_envs: The number of episodes.
        as_tensor: Makes a tensor of an array, for a field that holds tensors; else None.
        parts: The parts of a field, if its column is a dict of their columns; else None.
        is_list: Whether the parts are those of a tuple: one value of the field is a list of them.
    """

    name: str
    array: Array | None
    annotation: Any
    required: bool
    num_envs: int
    as_tensor: Callable[[Any], Any] | None = None
    parts: tuple[BatchField, ...] | None = None
    is_list: bool = False

    def row(self, column: Any, index: int) -> Any:
        """The value of one episode. The column may be a list of values, as that of Gymnasium's `final_obs`."""
        if self.parts is None or not isinstance(column, Mapping):
            return row_of(column, index)
        rows = {part.name: part.row(column[part.name], index) for part in self.parts}
        return list(rows.values()) if self.is_list else rows

    def filled(self, indices: list[int], values: list[Any]) -> Any:
        """A column with the values of some episodes, and 0 or None for the others.

        Raises:
            TypeError, ValueError, OverflowError: A value does not fit.
        """
        if self.array is None:
            listed: list[Any] = [None] * self.num_envs
            for index, value in zip(indices, values, strict=True):
                listed[index] = value
            return listed
        shape: Any = self.array.shape
        column = np.zeros(shape, self.array.dtype)
        column[indices] = values if column.ndim == 1 else np.stack([to_numpy(value) for value in values])
        return column if self.as_tensor is None else self.as_tensor(column)

    def column(self, value: Any, owner: str) -> Any:
        """The values of all episodes, as an environment returns them.

        Raises:
            StepFailed: They have another number, type or shape than the field declares.
        """
        what = f"field {self.name!r} of {owner}"
        if self.parts is not None:
            names = [part.name for part in self.parts]
            if not isinstance(value, Mapping) or value.keys() != set(names):
                raise StepFailed(f"{what} is a {type(value).__name__}: return a dict of columns, {', '.join(names)}")
            return {part.name: part.column(value[part.name], what) for part in self.parts}
        if self.array is None:
            return list_column(value, self.num_envs, what)
        array = to_numpy(value) if is_array(value) else np.asarray(value)
        declared = self.array
        if array.shape != declared.shape:
            raise StepFailed(f"{what} has shape {array.shape}: return an array of shape {declared.shape}")
        if array.dtype != declared.dtype:
            if not np.can_cast(array.dtype, declared.dtype, "same_kind"):
                raise StepFailed(f"{what} has elements of {array.dtype}: return an array of {declared.name}")
            array = array.astype(declared.dtype)
        return array


def row_of(column: Any, index: int) -> Any:
    """The value of one episode in a column, which may be a dict of columns."""
    if isinstance(column, Mapping):
        return {name: row_of(part, index) for name, part in column.items()}
    value = column[index]
    return value.item() if isinstance(value, np.generic) else value


def list_column(value: Any, num_envs: int, what: str) -> Any:
    """A list or an array of one value for each episode. Raises `StepFailed` if it has another length."""
    sized = is_array(value) and len(value.shape) > 0
    if not sized and not isinstance(value, (list, tuple)):
        raise StepFailed(f"{what} is a {type(value).__name__}: return a list or an array of {num_envs} values")
    if len(value) != num_envs:
        raise StepFailed(f"{what} has {len(value)} values: return one for each of the {num_envs} episodes")
    return to_numpy(value) if sized else list(value)


def copied_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns in new arrays and lists; values in lists are copied too."""
    copies: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            copies[name] = copied_columns(column)
            continue
        # `deepcopy` takes many times as long for the texts and numbers of nearly all lists.
        is_simple = SCALARS.issuperset(map(type, column)) if isinstance(column, list) else column.dtype != object
        copies[name] = column.copy() if is_simple else deepcopy(column)
    return copies


def merged_columns(columns: dict[str, Any], others: Mapping[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Columns with the rows of others in a mask. Changes the arrays and lists of `columns`."""
    rows = np.flatnonzero(mask)
    for name, other in others.items():
        column = columns.get(name)
        if column is None:
            columns[name] = other
        elif isinstance(column, Mapping):
            columns[name] = merged_infos(column, other, mask)
        elif isinstance(column, list) or column.dtype != getattr(other, "dtype", None):
            columns[name] = [other[index] if chosen else column[index] for index, chosen in enumerate(mask.tolist())]
        else:
            column[rows] = other[rows]
    return columns


def merged_infos(infos: Mapping[str, Any], others: Mapping[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Infos with the rows of others in a mask. An info of only some rows gets a column `_name`, which says so."""
    merged: dict[str, Any] = merged_columns({**infos}, others, mask)
    for name in [name for name in merged if name[:1] != "_" or name[1:] not in merged]:
        present = np.where(mask, _presence(others, name), _presence(infos, name))
        if not present.all():
            merged[f"_{name}"] = present
        else:
            merged.pop(f"_{name}", None)
    return merged


def _presence(infos: Mapping[str, Any], name: str) -> Any:
    return infos.get(f"_{name}", name in infos)


class BatchSpec:
    """The fields of a batch.

    Args:
        name: The environment's name, for messages.
        num_envs: The number of episodes.
        autoreset: What the environment does with episodes that have ended (`openenv.batched.Autoreset`).
        action_cls: The type of the action of one episode.
        observation_cls: The type of the observation of one episode.
        owned_only: Whether no episode can step without the others.

    Raises:
        UsageError: One of the types is not a model with fields, or has validators, which cannot run on columns.

    Attributes:
        actions: The fields of actions.
        observations: The fields of observations, without `reward`, `done` and `metadata`.
        action_type: The type of the actions of all episodes: a dict of columns.
        action_struct: A struct with the same fields as the action class, if all are plain numbers and strings.
        layouts: For `outcome.RowLayout`, by the fields of outcomes.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        autoreset: str,
        action_cls: Any,
        observation_cls: Any,
        owned_only: bool = False,
    ):
        self.name, self.num_envs, self.autoreset, self.owned_only = name, num_envs, autoreset, owned_only
        self.actions = self._fields(action_cls, frozenset({"metadata"}))
        self.observations = self._fields(observation_cls, _APART)
        self._defaults = {
            field.name: partial(action_cls.model_fields[field.name].get_default, call_default_factory=True)
            for field in self.actions
            if not field.required and field.parts is None
        }
        self.action_type: Any = _columns_type(f"{action_cls.__name__}Columns", self.actions)
        self.action_struct = _struct_of(action_cls)
        self.layouts: dict[tuple[str, ...], Any] = {}

    @property
    def is_shared(self) -> bool:
        """Whether single sessions can share an instance."""
        return self.autoreset == "disabled" and not self.owned_only

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the batch in `hello`."""
        names = [field.name for field in self.actions]
        return {
            "num_envs": self.num_envs,
            "autoreset": self.autoreset,
            "autoresets": self.autoresets,
            "action_fields": names,
        }

    @property
    def autoresets(self) -> tuple[str, ...]:
        """The modes that a client that owns a batch can choose, first the environment's own."""
        if self.autoreset != "disabled":
            return (self.autoreset,)
        return ("disabled", "same_step") if self.owned_only else ("disabled", "next_step", "same_step")

    def __deepcopy__(self, _: Any) -> BatchSpec:
        return self

    def _fields(self, cls: Any, apart: frozenset[str]) -> tuple[BatchField, ...]:
        if not (isinstance(cls, type) and issubclass(cls, BaseModel)):
            raise UsageError(
                f"{self.name} plays many episodes: declare its actions and observations as classes with fields, "
                f"not {cls!r}"
            )
        decorators = cls.__pydantic_decorators__
        if decorators.field_validators or decorators.model_validators:
            raise UsageError(
                f"{cls.__name__} has validators, which cannot run on the columns of {self.name}: declare bounds "
                "(Field(ge=0), Array(low=0)), or check the values in step"
            )
        return tuple(
            _field_of(name, field, self.num_envs, self.owned_only)
            for name, field in cls.model_fields.items()
            if name not in apart
        )

    def with_defaults(self, actions: dict[str, Any]) -> dict[str, Any]:
        """The columns of actions, with the default values of fields that they leave out."""
        if len(actions) == len(self.actions):
            return actions
        everywhere = list(range(self.num_envs))
        return {
            field.name: actions[field.name]
            if field.name in actions
            else field.filled(everywhere, [self._defaults[field.name]() for _ in everywhere])
            for field in self.actions
            if field.name in actions or field.name in self._defaults
        }

    def observation_columns(self, observations: Any, method: str) -> dict[str, Any]:
        """The observations that a method has returned, checked.

        Raises:
            StepFailed: A field is missing, unknown, or does not have a value for each episode.
        """
        owner = f"the observations of {self.name}.{method}"
        if not isinstance(observations, Mapping):
            raise StepFailed(f"{owner} are a {type(observations).__name__}: return a dict of columns by field")
        columns = {
            field.name: field.column(observations[field.name], owner)
            for field in self.observations
            if field.name in observations
        }
        if len(columns) != len(observations):
            unknown = next(name for name in observations if name not in columns)
            raise StepFailed(f"{owner} have a field {unknown!r}, which the class of observations does not declare")
        for field in self.observations:
            if field.required and field.name not in columns and field.name not in FACTS:
                raise StepFailed(f"{owner} have no field {field.name!r}: return a column of it")
        return columns


def _columns_type(name: str, fields: tuple[BatchField, ...]) -> Any:
    """The type of a dict with a column for each field."""
    types: dict[str, Any] = {
        field.name: field.annotation if field.required else NotRequired[field.annotation] for field in fields
    }
    make: Any = TypedDict
    return with_config(extra="forbid", arbitrary_types_allowed=True)(make(name, types))


def _parts_of(annotation: Any) -> dict[str, Any] | None:
    """The types of the parts of a `TypedDict`, or of a tuple of a fixed length; None for another type."""
    if is_typeddict(annotation):
        return get_type_hints(annotation, include_extras=True)
    arguments = get_args(annotation)
    is_fixed = get_origin(annotation) is tuple and Ellipsis not in arguments
    return {str(index): part for index, part in enumerate(arguments)} if is_fixed else None


def _field_of(name: str, field: FieldInfo, num_envs: int, nested: bool) -> BatchField:
    required, source = field.is_required(), field.annotation
    # What restricts a whole value cannot be checked on the columns of its parts.
    kinds = _parts_of(source) if nested and not field.metadata else None
    if kinds is not None:
        parts = tuple(
            _field_of(part, FieldInfo.from_annotation(kind), num_envs, nested) for part, kind in kinds.items()
        )
        return BatchField(
            name, None, _columns_type(name, parts), required, num_envs, None, parts, not is_typeddict(source)
        )
    declared = next((fact for fact in field.metadata if isinstance(fact, Array)), None)
    if declared is not None and None not in declared.shape:
        shape = (num_envs, *declared.shape)
        low, high = (
            None if bound is None else np.broadcast_to(bound, (num_envs, *bound.shape))
            for bound in (declared.low, declared.high)
        )
        annotation: Any = Annotated[source, Array(declared.name, shape, low, high)]
        as_tensor = None
        if str(getattr(source, "__module__", "")).partition(".")[0] == "torch":
            unbounded: Any = Annotated[source, Array(declared.name, shape)]
            as_tensor = TypeAdapter(unbounded).validate_python
        return BatchField(name, Array(declared.name, shape), annotation, required, num_envs, as_tensor)
    kind = _NUMBERS.get(source)
    if kind is not None and all(isinstance(fact, (Ge, Gt, Le, Lt)) for fact in field.metadata):
        array = Array(kind, (num_envs,), *_bounds(field.metadata, kind))
        return BatchField(name, array, Annotated[np.ndarray, array], required, num_envs)
    part: Any = Annotated[source, *field.metadata] if field.metadata else source
    listed: Any = Annotated[list[part], MinLen(num_envs), MaxLen(num_envs)]
    return BatchField(name, None, listed, required, num_envs)


def _struct_of(cls: type[BaseModel]) -> type[Struct] | None:
    """A struct that reads no action that the class refuses; None if a field is not a plain number or string."""
    fields: list[tuple[str, Any, Any]] = []
    for name, field in cls.model_fields.items():
        bounds: dict[str, Any] = {}
        for fact in field.metadata:
            if not isinstance(fact, (Ge, Gt, Le, Lt)):
                return None
            bounds |= asdict(fact)
        if name == "metadata":
            continue
        if field.annotation not in _PLAIN or field.alias or field.validation_alias or field.default_factory:
            return None
        if bounds and field.annotation is not int:  # a struct takes NaN for a number within bounds
            return None
        kind: Any = Annotated[field.annotation, Meta(**bounds)] if bounds else field.annotation
        fields.append((name, kind, NODEFAULT if field.is_required() else field.get_default()))
    if cls.__init__ is not BaseModel.__init__ or cls.model_post_init is not BaseModel.model_post_init:
        return None
    if cls.model_config.keys() - Action.model_config.keys() or cls.model_config.get("extra") != "forbid":
        return None
    return defstruct(cls.__name__, fields, forbid_unknown_fields=True, kw_only=True, gc=False)


def _bounds(facts: list[Any], kind: str) -> tuple[Any, Any]:
    """The lower and upper bound of a number; an exclusive one as the nearest number inside."""

    def inside(bound: Any, direction: int) -> Any:
        return bound + direction if kind == "int64" else np.nextafter(bound, direction * np.inf)

    lows = [inside(fact.gt, 1) for fact in facts if isinstance(fact, Gt)]
    highs = [inside(fact.lt, -1) for fact in facts if isinstance(fact, Lt)]
    lows += [fact.ge for fact in facts if isinstance(fact, Ge)]
    highs += [fact.le for fact in facts if isinstance(fact, Le)]
    return max(lows, default=None), min(highs, default=None)
