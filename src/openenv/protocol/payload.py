"""Observations and states as JSON: model in, bytes out, in one serialization.

The shape is the v1 payload: `{"observation": {every field but reward and done}, "reward", "done"}`, with
`metadata` repeated at the top when there is any and `truncated` only when it is true. Clients that nobody
here wrote forbid unknown fields inside `observation`, so nothing is ever added there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

from ..errors import StepFailed
from ..interrupts import from_signal
from .portable import UNWRITABLE, fields_of, mapping_of, portable_v1
from .report import unsendable
from .reward import finite_reward

__all__ = ["encode_observation", "encode_state"]

_BESIDE = {"reward", "done"}
_METADATA = {"metadata"}
_UNWRITABLE = (PydanticSerializationError, *UNWRITABLE)


class _Plan(NamedTuple):
    """How to encode one observation class; found out once, since asking a model for a field it has not is slow."""

    to_json: Callable[..., bytes]
    has_metadata: bool
    has_truncated: bool


_plans: dict[type[object], _Plan | None] = {}


def _make_plan(cls: type[object]) -> _Plan | None:
    """None for a class that is no model with `reward` and `done`."""
    plan = None
    if issubclass(cls, BaseModel) and {"reward", "done"} <= set(cls.model_fields):
        fields = cls.model_fields
        plan = _Plan(cls.__pydantic_serializer__.to_json, "metadata" in fields, "truncated" in fields)
    _plans[cls] = plan
    return plan


def encode_observation(
    observation: Any,
    before: bytes = b"",
    after: bytes = b"",
    notes: dict[str, Any] | None = None,
    complete: bool = False,
) -> bytes:
    """Encodes what `reset` or `step` returned.

    Args:
        observation: An `Observation`; a mapping or another object with the same fields is taken too.
        before, after: What to put around it, in the same pass.
        notes: Joins the metadata beside the observation, and not inside it.
        complete: Write `metadata` also when there is none, as null, and the reward as a float: the HTTP responses of
            the released package are so.

    Raises:
        StepFailed: The reward is NaN or infinite, or a field cannot be written as JSON (the message names it).
    """
    try:
        cls = type(observation)
        plan = _plans[cls] if cls in _plans else _make_plan(cls)
        if plan is None:
            return before + _encode_mapping(observation, _mapping, notes or {}, complete) + after
        to_json, has_metadata, has_truncated = plan
        try:
            fields = to_json(observation, exclude=_BESIDE, warnings=False)
        except _UNWRITABLE:  # arrays, or bytes that are no text; or what cannot be written at all
            return before + _encode_mapping(observation, _portable_fields, notes or {}, complete) + after
        reward = observation.reward
        number = b"null" if reward is None else _number(reward, complete)
        closing = b',"done":true' if observation.done else b',"done":false'
        if notes is not None:
            own = from_json(to_json(observation, include=_METADATA, warnings=False)).get("metadata")
            closing += b',"metadata":' + _json({**(own or {}), **notes})
        elif has_metadata and observation.metadata:
            # Out of the model's own hands, since it may write it its own way: `{"metadata":...}` without the braces.
            closing += b"," + to_json(observation, include=_METADATA, warnings=False)[1:-1]
        elif complete:
            closing += b',"metadata":null'
        if has_truncated and observation.truncated is True:
            closing += b',"truncated":true'
        return b"".join((before, b'{"observation":', fields, b',"reward":', number, closing, b"}", after))
    except StepFailed:
        raise
    except BaseException as error:  # the edge to foreign code: its values may raise anything when they are read
        if from_signal(error):
            raise
        raise unsendable(observation, error) from error


def _encode_mapping(
    observation: Any, mapping: Callable[[Any], Mapping[str, Any]], notes: dict[str, Any], complete: bool
) -> bytes:
    try:
        values = mapping(observation)
        fields = _json({key: value for key, value in values.items() if key not in _BESIDE})
    except _UNWRITABLE as error:
        raise StepFailed(_explain(observation, error)) from error
    reward = values.get("reward")
    metadata = {**(values.get("metadata") or {}), **notes} if notes else values.get("metadata")
    return b'{"observation":%b,"reward":%b,"done":%b%b%b}' % (
        fields,
        b"null" if reward is None else _number(reward, complete),
        b"true" if values.get("done") else b"false",
        b',"metadata":' + (_json(metadata) if metadata else b"null") if metadata or complete else b"",
        b',"truncated":true' if values.get("truncated") is True else b"",
    )


def encode_state(state: Any) -> bytes:
    """Encodes an environment's `state`: a `State`, another model, a mapping or a plain object.

    Raises:
        StepFailed: A field cannot be written as JSON; the message names it.
    """
    try:
        return _encode_state(state)
    except StepFailed:
        raise
    except BaseException as error:  # as above
        if from_signal(error):
            raise
        raise unsendable(state, error) from error


def _encode_state(state: Any) -> bytes:
    try:
        if isinstance(state, BaseModel):
            try:
                return state.__pydantic_serializer__.to_json(state, warnings=False)
            except _UNWRITABLE:
                return _json(_portable_fields(state))
        return _json(_mapping(state))
    except _UNWRITABLE as error:
        raise StepFailed(_explain(state, error)) from error


def _json(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")
    except _UNWRITABLE:
        return to_json(portable_v1(value), inf_nan_mode="constants")


def _portable_fields(model: BaseModel) -> Mapping[str, Any]:
    """The fields of a model that pydantic cannot write as JSON."""
    fields: dict[str, Any] = portable_v1(fields_of(model))
    own: dict[str, Any] = {
        name: getattr(model, name) for name in ("reward", "done") if name in type(model).model_fields
    }
    return {**fields, **own}


def _number(reward: Any, as_float: bool) -> bytes:
    if type(reward) is float and isfinite(reward):
        return repr(reward).encode()
    number = finite_reward(reward)
    return _json(float(number) if as_float else number)


def _mapping(value: Any) -> dict[str, Any]:
    """The fields of what is no `Observation`."""
    if isinstance(value, BaseModel):  # by its own serializers, as they are declared
        fields: dict[str, Any] = from_json(value.__pydantic_serializer__.to_json(value, warnings=False))
        return fields
    return dict(mapping_of(value))


def _explain(value: Any, error: Exception) -> str:
    try:
        fields = dict(value) if isinstance(value, BaseModel) else _mapping(value)
    except TypeError:
        return str(error)
    for name, content in fields.items():
        try:
            _json(content)
        except _UNWRITABLE as cause:
            return f"field {name!r} of {type(value).__name__} cannot be written as JSON: {cause}"
    return f"{type(value).__name__} cannot be written as JSON: {error}"
