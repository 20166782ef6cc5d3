"""What an environment returned, as the fields of a reply.

`observation` holds the same as in v1: every field but reward and done. Beside it reward, done, terminated and
truncated, and metadata when there is any.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from pydantic import BaseModel

from ..errors import StepFailed
from .codec import Body, Codec
from .plan import plan_of
from .portable import UNWRITABLE, fields_of, mapping_of
from .reward import finite_reward

__all__ = ["encode_outcome", "encode_state_fields"]


def encode_outcome(observation: Any, codec: Codec, notes: Mapping[str, Any] | None = None) -> Body:
    """The reply to reset and step.

    Args:
        observation: An `Observation`; a mapping or another object with the same fields is taken too.
        codec: How it is written.
        notes: Joins the metadata beside the observation, and not inside it.

    Raises:
        StepFailed: The reward is no finite number, or a field cannot be written; the message names it.
    """
    kind: Any = type(observation)
    plan = plan_of(kind)
    fields = plan.fields(observation) if plan is not None else None
    if plan is not None and fields is not None:
        plain, has_terminated = plan.is_plain(fields), plan.has_terminated
    else:
        plain = False
        try:
            fields, has_terminated = _declared(observation)
        except UNWRITABLE as error:
            raise StepFailed(_explain(observation, codec, error)) from error
    reward = fields.pop("reward", None)
    if reward is not None and not (type(reward) is float and isfinite(reward)):
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
        raise StepFailed(_explain(observation, codec, error)) from error


def encode_state_fields(state: Any, codec: Codec) -> Body:
    """The reply to state: a `State`, another model, a mapping or a plain object.

    Raises:
        StepFailed: A field cannot be written; the message names it.
    """
    try:
        fields = _fields_of(state) if isinstance(state, BaseModel) else mapping_of(state)
        return codec.body({"ok": True, "state": fields})
    except UNWRITABLE as error:
        raise StepFailed(_explain(state, codec, error)) from error


def _declared(observation: Any) -> tuple[dict[str, Any], bool]:
    """A new dict of the fields of what is no plain model, and whether it tells `terminated` itself."""
    if not isinstance(observation, BaseModel):
        values = dict(mapping_of(observation))
        return values, isinstance(values.get("terminated"), bool)
    declared = type(observation).model_fields
    written = _fields_of(observation)
    # These are facts about the call, whatever the class makes of them inside its observation.
    own: dict[str, Any] = {name: getattr(observation, name) for name in ("reward", "done") if name in declared}
    return {**written, **own}, "terminated" in declared and declared["terminated"].annotation is bool


def _fields_of(model: BaseModel) -> dict[str, Any]:
    fields = fields_of(model)
    if not isinstance(fields, dict):
        raise TypeError(f"{type(model).__name__} writes itself as {type(fields).__name__}, not as fields")
    return fields


def _explain(value: Any, codec: Codec, error: Exception) -> str:
    """Names the field that could not be written."""
    try:
        fields = dict(value) if isinstance(value, BaseModel) else mapping_of(value)
    except TypeError:
        return str(error)
    for name, content in fields.items():
        try:
            codec.encode(content)
        except ValueError as cause:
            return f"field {name!r} of {type(value).__name__} {cause}"
    return f"{type(value).__name__} cannot be written: {error}"
