"""From actions to payloads and from payloads to results, by the types a client is made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import ProtocolViolation
from ..types import StepResult

__all__ = ["dump_action", "parse_observation", "parse_state"]


def dump_action(action: Any) -> dict[str, Any]:
    """An action as the `data` of a step."""
    if type(action) is dict:
        return action.copy()
    if isinstance(action, BaseModel):
        # An empty metadata says nothing, and most actions have one.
        empty = {"metadata"} if not getattr(action, "metadata", True) else None
        return action.model_dump(mode="json", exclude=empty)
    if isinstance(action, Mapping):
        return dict(action)
    raise TypeError(f"an action is a model or a mapping, not {type(action).__name__}")


def parse_observation(adapter: TypeAdapter[Any] | None, payload: Mapping[str, Any]) -> StepResult[Any]:
    """A reply to reset or step as a result.

    Args:
        adapter: The observation's type; None leaves the observation a dict.
        payload: `observation`, `reward`, `done` and perhaps `metadata`, `truncated`, `terminated`.

    Raises:
        ProtocolViolation: The payload is no such observation; the message says where.
    """
    fields = payload.get("observation")
    if type(fields) is not dict and not isinstance(fields, Mapping):  # asking for a mapping is slow
        raise ProtocolViolation(f"a reply without an observation: {dict(payload)!r:.200}")
    reward, done = payload.get("reward"), payload.get("done")
    if done is None:
        raise ProtocolViolation(f"a reply that does not say whether the episode is done: {dict(payload)!r:.200}")
    done = bool(done)
    observation: Any = fields
    if adapter is not None:
        observation = _validate(adapter, {**fields, "reward": reward, "done": done})
    metadata = payload.get("metadata") or fields.get("metadata") or None
    truncated, terminated = bool(payload.get("truncated", False)), payload.get("terminated")
    if not isinstance(terminated, bool):  # v1 does not say
        terminated = done and not truncated
    return StepResult(observation, reward, done, metadata, truncated, None, terminated)


def parse_state(adapter: TypeAdapter[Any] | None, payload: Mapping[str, Any]) -> Any:
    """A reply to state as the client's state type. Raises `ProtocolViolation` where it does not fit."""
    return payload if adapter is None else _validate(adapter, payload)


def _validate(adapter: TypeAdapter[Any], values: Mapping[str, Any]) -> Any:
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        raise ProtocolViolation(
            f"the server's reply does not fit this client's types (are both of one version?): {error}"
        ) from error
