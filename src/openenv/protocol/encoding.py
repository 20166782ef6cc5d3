"""Encodes observations and states in one pass, for the payloads of v1 and the replies of v2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from ..errors import StepFailed
from .codecs import Body, Codec, is_plain
from .coercion import forms_of
from .errors import raise_unsendable
from .values import (
    SCALARS,
    UNWRITABLE,
    fields_of,
    finite_reward,
    is_plain_model,
    is_tight,
    mapping_of,
    portable_v1,
)

_BESIDE = {"reward", "done"}
_METADATA = {"metadata"}
_AS_JSON = "cannot be written as JSON: "


class _PlanV1(NamedTuple):
    """How to encode one observation class. Made once, because `getattr` of a missing field is slow on a model."""

    to_json: Callable[..., bytes]
    has_metadata: bool
    has_truncated: bool


@cache
def _plan_v1_of(cls: type[Any]) -> _PlanV1 | None:
    """The plan of a class; None for a class that is not a model with `reward` and `done`."""
    if not issubclass(cls, BaseModel) or not {"reward", "done"} <= set(cls.model_fields):
        return None
    fields = cls.model_fields
    return _PlanV1(cls.__pydantic_serializer__.to_json, "metadata" in fields, "truncated" in fields)


def encode_observation(
    observation: Any,
    before: bytes = b"",
    after: bytes = b"",
    notes: dict[str, Any] | None = None,
    complete: bool = False,
) -> bytes:
    """Encodes the result of `reset` or `step`.

    Args:
        observation: An `Observation`, or a mapping or another object with the same fields.
        before, after: Bytes to put around it, in the same pass.
        notes: Entries for the metadata beside the observation, not for the metadata inside it.
        complete: Write empty `metadata` as null, and the reward as a float, like the HTTP responses of the released
            package.

    Raises:
        StepFailed: The reward is NaN or infinite, or a field cannot be written as JSON (the message names it).
    """
    try:
        cls: Any = type(observation)
        plan = _plan_v1_of(cls)
        if plan is None:
            return before + _encode_mapping(observation, _mapping, notes or {}, complete) + after
        to_json, has_metadata, has_truncated = plan
        try:
            fields = to_json(observation, exclude=_BESIDE, warnings=False)
        except UNWRITABLE:  # arrays, bytes that are not UTF-8, or values that cannot be encoded
            return before + _encode_mapping(observation, _portable_fields, notes or {}, complete) + after
        reward = observation.reward
        number = b"null" if reward is None else _number(reward, complete)
        closing = b',"done":true' if observation.done else b',"done":false'
        if notes is not None:
            own = from_json(to_json(observation, include=_METADATA, warnings=False)).get("metadata")
            closing += b',"metadata":' + _json({**(own or {}), **notes})
        elif has_metadata and observation.metadata:
            # Encoded by the model, which may have its own form for it: `{"metadata":...}` without the braces.
            closing += b"," + to_json(observation, include=_METADATA, warnings=False)[1:-1]
        elif complete:
            closing += b',"metadata":null'
        if has_truncated and observation.truncated is True:
            closing += b',"truncated":true'
        return b"".join((before, b'{"observation":', fields, b',"reward":', number, closing, b"}", after))
    except BaseException as error:  # noqa: BLE001 - foreign code: reading its values may raise any exception
        raise_unsendable(observation, error)


def _encode_mapping(
    observation: Any, mapping: Callable[[Any], Mapping[str, Any]], notes: dict[str, Any], complete: bool
) -> bytes:
    try:
        values = mapping(observation)
        fields = _json({key: value for key, value in values.items() if key not in _BESIDE})
    except UNWRITABLE as error:
        raise StepFailed(_explain(observation, _json, error, _AS_JSON)) from error
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
        try:
            if isinstance(state, BaseModel):
                try:
                    return state.__pydantic_serializer__.to_json(state, warnings=False)
                except UNWRITABLE:
                    return _json(_portable_fields(state))
            return _json(dict(mapping_of(state)))
        except UNWRITABLE as error:
            raise StepFailed(_explain(state, _json, error, _AS_JSON)) from error
    except BaseException as error:  # noqa: BLE001 - as above
        raise_unsendable(state, error)


def _json(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")
    except UNWRITABLE:
        return to_json(portable_v1(value), inf_nan_mode="constants")


def _portable_fields(model: BaseModel) -> Mapping[str, Any]:
    """The fields of a model that pydantic cannot write as JSON."""
    fields: dict[str, Any] = portable_v1(fields_of(model))
    own: dict[str, Any] = {
        name: getattr(model, name) for name in ("reward", "done") if name in type(model).model_fields
    }
    return {**fields, **own}


def _number(reward: Any, as_float: bool) -> bytes:
    if type(reward) is float and math.isfinite(reward):
        return repr(reward).encode()
    number = finite_reward(reward)
    return _json(float(number) if as_float else number)


def _mapping(value: Any) -> dict[str, Any]:
    """The fields of a value that is not an `Observation`."""
    if isinstance(value, BaseModel):  # with its declared serializers
        fields: dict[str, Any] = from_json(value.__pydantic_serializer__.to_json(value, warnings=False))
        return fields
    return dict(mapping_of(value))


def _explain(value: Any, write: Callable[[Any], object], error: Exception, words: str = "") -> str:
    """Finds the field that cannot be encoded, after the whole failed. `words` precede the error of `write`."""
    kind = type(value).__name__
    try:
        fields = dict(value) if isinstance(value, BaseModel) else mapping_of(value)
    except TypeError:
        return str(error)
    for name, content in fields.items():
        try:
            write(content)
        except UNWRITABLE as cause:
            return f"field {name!r} of {kind} {words}{cause}"
    return f"{kind} {words or 'cannot be written: '}{error}"


class EncodedOutcome:
    """A result of reset or step that encodes itself. No abstract class, since steps are asked for their class."""

    __slots__ = ()

    def body(self, codec: Codec) -> Body:
        """The reply. Raises `StepFailed` if it cannot be encoded."""
        raise NotImplementedError


class ObservationPlan(NamedTuple):
    """Facts about an observation class, to encode its instances without pydantic.

    Attributes:
        width: The number of fields of the class, including `reward` and `done`.
        loose: Names of the fields whose values encoders may write in different ways (`Any`, bytes, arrays). All
            others have plain values, or values that msgspec refuses to encode.
        has_terminated: Whether it has a field `terminated: bool`.
        has_arrays: Whether a field is declared as an `Array`, or contains one.
    """

    width: int
    loose: tuple[str, ...]
    has_terminated: bool
    has_arrays: bool

    def fields(self, observation: Any) -> dict[str, Any] | None:
        """A new dict of all fields, including `reward` and `done`; None if the instance deviates from its class."""
        fields: dict[str, Any] = observation.__dict__
        return fields.copy() if len(fields) == self.width else None

    def is_plain(self, fields: dict[str, Any], leaves: frozenset[type[Any]] = SCALARS) -> bool:
        """Whether each of these fields of an instance is plain (`codecs.is_plain`), or refused by msgspec."""
        for name in self.loose:
            value = fields[name]
            if type(value) is dict and not value:
                continue
            if not is_plain(value, leaves=leaves):
                return False
        return True


@cache
def plan_of(cls: type[Any]) -> ObservationPlan | None:
    """The plan of a class; None for a class that is not a plain model with `reward` and `done`."""
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
        has_arrays=forms_of(cls, math.inf, False) is not None,
    )


def encode_outcome(
    observation: Any, codec: Codec, notes: Mapping[str, Any] | None = None, declared: Any = None
) -> Body:
    """The reply to reset and step.

    Args:
        observation: An `Observation`, a mapping or another object with the same fields, or an `EncodedOutcome`.
        codec: Encodes the reply.
        notes: Entries for the metadata beside the observation, not for the metadata inside it.
        declared: The type of the observation, if that is a mapping: of an environment in a process.

    Raises:
        StepFailed: The reward is not a finite number, or a field cannot be encoded; the message names it.
    """
    try:
        kind: Any = type(observation)
        plan = plan_of(kind)
        fields = plan.fields(observation) if plan is not None else None
        if plan is not None and fields is not None:
            if plan.has_arrays:
                fields = _formed(fields, kind, codec)
            plain, has_terminated = plan.is_plain(fields, codec.leaves), plan.has_terminated
        elif isinstance(observation, EncodedOutcome):
            return observation.body(codec)
        else:
            plain = False
            try:
                fields, has_terminated = _read_fields(observation)
                fields = _formed(fields, declared if kind is dict else kind, codec)
            except UNWRITABLE as error:
                raise StepFailed(_explain(observation, codec.encode, error)) from error
        reward = fields.pop("reward", None)
        if reward is not None and not (type(reward) is float and math.isfinite(reward)):
            reward = finite_reward(reward)
        done = bool(fields.pop("done", False))
        truncated = fields.get("truncated") is True
        terminated = fields["terminated"] is True if has_terminated else done and not truncated
        reply = {
            "ok": True,
            "observation": fields,
            "reward": reward,
            "done": done,
            "terminated": terminated,
            "truncated": truncated,
        }
        metadata = fields.get("metadata")
        if notes is not None:
            reply["metadata"], plain = {**(metadata or {}), **notes}, False
        elif metadata:
            reply["metadata"] = metadata
        try:
            return codec.body(reply, plain)
        except ValueError as error:
            raise StepFailed(_explain(observation, codec.encode, error)) from error
    except BaseException as error:  # noqa: BLE001 - foreign code: reading its values may raise any exception
        raise_unsendable(observation, error)


def encode_state_fields(state: Any, codec: Codec) -> Body:
    """The reply to state: a `State`, another model, a mapping or a plain object.

    Raises:
        StepFailed: A field cannot be encoded; the message names it.
    """
    try:
        fields = mapping_of(state)
        if isinstance(state, BaseModel):
            fields = _formed(_fields_of(state), type(state), codec)
        return codec.body({"ok": True, "state": fields})
    except UNWRITABLE as error:
        raise StepFailed(_explain(state, codec.encode, error)) from error
    except BaseException as error:  # noqa: BLE001 - as above
        raise_unsendable(state, error)


def _formed(fields: dict[str, Any], declared: Any, codec: Codec) -> dict[str, Any]:
    """The fields of a value of a declared type, with the declared arrays in the form that the codec sends.

    Raises:
        StepFailed: An array does not fit its declaration; the message names the field.
    """
    convert = forms_of(declared, codec.list_bytes, codec.compresses)
    if convert is None:
        return fields
    try:
        formed: dict[str, Any] = convert(fields)
    except UNWRITABLE as error:
        for name, content in fields.items():
            try:
                convert({name: content})
            except UNWRITABLE as cause:
                raise StepFailed(f"field {name!r} cannot be sent: {cause}") from error
        raise
    return formed


def _read_fields(observation: Any) -> tuple[dict[str, Any], bool]:
    """The fields of an observation that is not a plain model, as a new dict, and whether it has `terminated`."""
    if not isinstance(observation, BaseModel):
        values = dict(mapping_of(observation))
        return values, isinstance(values.get("terminated"), bool)
    declared = type(observation).model_fields
    written = _fields_of(observation)
    # These are facts about the call, even if the class encodes them in another form.
    own: dict[str, Any] = {name: getattr(observation, name) for name in ("reward", "done") if name in declared}
    return {**written, **own}, "terminated" in declared and declared["terminated"].annotation is bool


def _fields_of(model: BaseModel) -> dict[str, Any]:
    fields = fields_of(model)
    if not isinstance(fields, dict):
        raise TypeError(f"{type(model).__name__} serializes as {type(fields).__name__}, not as fields")
    return fields
