"""Turns actions into payloads and replies into results, by the types that a client class declares."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import InvalidArgument, ProtocolViolation, SchemaMismatch, SeedIgnored
from ..protocol.coercion import coercer_of
from ..protocol.values import fields_of, has_own_forms, holds_binary, is_tight
from ..types import StepResult

if TYPE_CHECKING:
    from .session_client import SessionClient

# Errors of a client's own parsing when a reply was written for another client.
MISREADINGS = (ValidationError, LookupError, TypeError, AttributeError)


def dump_action(action: Any) -> dict[str, Any]:
    """An action as the `data` of a step."""
    if type(action) is dict:
        return action.copy()
    if isinstance(action, BaseModel):
        # Most actions have an empty metadata, which is left out.
        empty = {"metadata"} if not getattr(action, "metadata", True) else None
        if not (empty and _is_text(type(action))) and _is_binary(action):
            return _fields(action, empty)
        try:
            return action.model_dump(mode="json", exclude=empty)
        except ValueError:  # an array, in a class with its own forms for other values
            return _fields(action, empty)
    if isinstance(action, Mapping):
        return dict(action)
    raise TypeError(f"an action is a model or a mapping, not {type(action).__name__}")


def _fields(action: BaseModel, empty: set[str] | None) -> dict[str, Any]:
    """The fields; bytes and arrays unchanged."""
    fields: dict[str, Any] = fields_of(action)
    return {name: value for name, value in fields.items() if empty is None or name not in empty}


@cache
def _is_text(cls: type[BaseModel]) -> bool:
    """Whether the types of a class's fields, except metadata, exclude bytes and arrays."""
    return set(_loose_fields(cls)) <= {"metadata"} and cls.model_config.get("extra") != "allow"


@cache
def _loose_fields(cls: type[BaseModel]) -> tuple[str, ...]:
    """The fields that may hold bytes or arrays, by type; empty for a class with its own JSON forms."""
    if has_own_forms(cls):
        return ()
    return tuple(name for name, field in cls.model_fields.items() if not is_tight(field.annotation))


def _is_binary(action: BaseModel) -> bool:
    """Whether an action holds bytes or arrays, which are encoded only when the protocol is known."""
    values, more = action.__dict__, action.__pydantic_extra__
    return any(holds_binary(values.get(name)) for name in _loose_fields(type(action))) or (
        bool(more) and holds_binary(more)
    )


def unwritable_error(kind: str, error: ValueError) -> InvalidArgument:
    """The error for an action, or an argument of a reset, that cannot be written."""
    return InvalidArgument(f"{'the action' if kind == 'step' else 'an argument'} {error}")


def parse_observation(adapter: TypeAdapter[Any] | None, payload: Mapping[str, Any]) -> StepResult[Any]:
    """A reply to reset or step as a result.

    Args:
        adapter: The observation's type; None leaves the observation a dict.
        payload: `observation`, `reward`, `done` and perhaps `metadata`, `truncated`, `terminated`.

    Raises:
        ProtocolViolation: The payload does not fit; the message says where.
    """
    fields = payload.get("observation")
    if type(fields) is not dict and not isinstance(fields, Mapping):  # the check for Mapping is slow
        raise ProtocolViolation(f"a reply without an observation: {dict(payload)!r:.200}")
    reward, done = payload.get("reward"), payload.get("done", False)
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


def is_bare(payload: Mapping[str, Any]) -> bool:
    """Whether a valid reply only has an observation and a reward: its episode goes on, and it has no metadata."""
    observation, reward = payload.get("observation"), payload.get("reward")
    return (
        type(observation) is dict
        and type(reward) is float
        and reward - reward == 0  # finite
        and payload.get("done") is False
        and not payload.get("metadata")
        and not observation.get("metadata")
    )


def parse_state(adapter: TypeAdapter[Any] | None, payload: Mapping[str, Any]) -> Any:
    """A reply to state as the client's state type. Raises `ProtocolViolation` if it does not fit."""
    return payload if adapter is None else _validate(adapter, payload)


def _validate(adapter: TypeAdapter[Any], values: Mapping[str, Any]) -> Any:
    try:
        return adapter.validate_python(values)
    except ValidationError as refused:
        error = refused
    coerce = coercer_of(adapter._type)
    coerced = values if coerce is None else coerce(values)
    if coerced is not values:
        try:
            return adapter.validate_python(coerced)
        except ValidationError as refused:
            error = refused
    raise ProtocolViolation(
        f"the server's reply does not fit this client's types (are both of one version?): {error}"
    ) from error


def misread_error(parse: Callable[..., Any], fault: Exception) -> ProtocolViolation:
    """The error for a reply that a client's own parsing cannot read."""
    hook = getattr(parse, "__qualname__", "the client")
    advice = "does this client belong to that server, and are both of one version?"
    return ProtocolViolation(f"{hook} cannot read the server's reply ({advice}): {type(fault).__name__}: {fault}")


# Warnings already given: class of the error, class of the client, server.
_warned: set[tuple[type, type, str | int]] = set()


def raise_or_warn(client: SessionClient, error: SchemaMismatch | SeedIgnored) -> None:
    """Raises an error if the client is strict; else warns of it, once for each client class and server."""
    if client._strict:
        raise error
    warning = type(error), type(client), client._url if client._url is not None else id(client._app)
    if warning not in _warned:
        _warned.add(warning)
        warnings.warn(error, stacklevel=3)


def check_seed(client: SessionClient, arguments: Mapping[str, Any], reply: object) -> None:
    """Raises or warns if the environment ignores the seed of a reset.

    Args:
        client: The client.
        arguments: The arguments of the reset.
        reply: Its reply in wire form; anything but a mapping is ignored.

    Raises:
        SeedIgnored: The client is strict. Others warn once for each class and server.
    """
    if arguments.get("seed") is None or not isinstance(reply, Mapping):
        return
    metadata = reply.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("seedable") is not False:
        return
    ignored = SeedIgnored(
        f"the seed {arguments['seed']!r:.50} was ignored: the environment of {client._url or 'the app'} takes none, "
        "so episodes cannot be repeated by it; give its reset a parameter `seed`, or leave the seed out"
    )
    raise_or_warn(client, ignored)
