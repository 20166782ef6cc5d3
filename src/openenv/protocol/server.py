"""The server's side of protocol v1: frames become messages, results become frames.

v1 has no ids and no state of its own: one request, one reply, in order. So one `ServerProtocol` serves
every connection to one environment class.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import TypedDict  # typing's own cannot be read by pydantic before Python 3.12

from ..errors import InvalidAction, InvalidMessage, OpenEnvError, UnknownMessage
from .jsonrpc import encode
from .lifting import lifter_of
from .payload import encode_observation, encode_state
from .report import MOST_FAULTS, UNSEEDED, place_of, too_many_faults

__all__ = ["ClientMessage", "ServerProtocol"]


_T = TypeVar("_T")


@with_config(extra="forbid")
class ResetMessage(TypedDict):
    type: Literal["reset"]
    data: NotRequired[dict[str, Any]]


@with_config(extra="forbid")
class StepMessage(TypedDict, Generic[_T]):
    type: Literal["step"]
    data: _T


@with_config(extra="forbid")
class StateMessage(TypedDict):
    type: Literal["state"]


@with_config(extra="forbid")
class McpMessage(TypedDict):
    type: Literal["mcp"]
    data: dict[str, Any]


@with_config(extra="forbid")
class CloseMessage(TypedDict):
    type: Literal["close"]


ClientMessage = ResetMessage | StepMessage[Any] | StateMessage | McpMessage | CloseMessage
_TYPES = frozenset({"reset", "step", "state", "mcp", "close"})
# How a step begins: as compact writers put it, and as `json.dumps` does.
_STEP, _SPACED_STEP = b'{"type":"step","data":', b'{"type": "step", "data": '
_STEP_LENGTH, _SPACED_LENGTH = len(_STEP), len(_SPACED_STEP)
_BRACE = ord("}")


class ServerProtocol:
    """Reads client frames and writes server frames for one action type.

    Args:
        action_type: The action class (or a union of such) that `step` frames carry.
    """

    def __init__(self, action_type: Any):
        # Frame and action are validated in one pass over the bytes: no dict, then model.
        messages = ResetMessage | StepMessage[action_type] | StateMessage | McpMessage | CloseMessage
        adapter: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[messages, Field(discriminator="type")])
        self._validate = adapter.validator.validate_json
        action = TypeAdapter(action_type).validator
        self._validate_action, self._validate_values = action.validate_json, action.validate_python
        self._lift = lifter_of(action_type)

    def receive(self, frame: bytes | str) -> ClientMessage:
        """Reads one text frame.

        Raises:
            InvalidMessage: Not JSON.
            UnknownMessage: An object without a known `type`.
            InvalidAction: The message or its action does not validate; `data["errors"]` says where.
        """
        try:
            # Nearly every frame. What stands between is one whole JSON value or does not validate, so nothing
            # else of the frame is overlooked; the general way costs nearly twice as much.
            if frame[:_STEP_LENGTH] == _STEP and frame[-1] == _BRACE:
                return {"type": "step", "data": self._validate_action(frame[_STEP_LENGTH:-1])}
            if frame[:_SPACED_LENGTH] == _SPACED_STEP and frame[-1] == _BRACE:
                return {"type": "step", "data": self._validate_action(frame[_SPACED_LENGTH:-1])}
        except ValidationError:
            pass  # the general way says what is wrong, and where
        try:
            message: ClientMessage = self._validate(frame)
        except ValidationError as error:
            return self._lifted(frame, error)
        return message

    def _lifted(self, frame: bytes | str, error: ValidationError) -> ClientMessage:
        """A step whose action holds arrays or bytes as v1 can say them. Raises what `error` means for any other."""
        values = _action_in(frame) if self._lift is not None else None
        lifted = values if self._lift is None else self._lift(values)
        if lifted is values:
            raise _classify(frame, error) from None
        try:
            return {"type": "step", "data": self._validate_values(lifted)}
        except ValidationError:
            raise _classify(frame, error) from None

    def receive_binary(self, frame: bytes) -> ClientMessage:
        """Refuses a binary frame.

        Raises:
            InvalidMessage: Always.
        """
        raise InvalidMessage(f"a binary frame of {len(frame)} bytes: protocol v1 speaks JSON in text frames")

    @staticmethod
    def observation(observation: Any) -> bytes:
        """The reply to reset and step. Raises `StepFailed` for what cannot be sent."""
        return encode_observation(observation, b'{"type":"observation","data":', b"}")

    @staticmethod
    def unseeded(observation: Any) -> bytes:
        """The reply to a reset with a seed that its environment does not take. Raises as `observation` does."""
        return encode_observation(observation, b'{"type":"observation","data":', b"}", UNSEEDED)

    @staticmethod
    def state(state: Any) -> bytes:
        """The reply to state. Raises `StepFailed` for what cannot be sent."""
        return b'{"type":"state","data":%b}' % encode_state(state)

    @staticmethod
    def mcp(reply: dict[str, Any]) -> bytes:
        """The reply to a JSON-RPC request, which is one of JSON-RPC."""
        return b'{"type":"mcp","data":%b}' % encode(reply)

    @staticmethod
    def error(error: OpenEnvError) -> bytes:
        """An error frame: the v1 code and message, with this package's further facts beside them."""
        data = {**error.data, **error.facts()}
        try:
            encoded = to_json(data, fallback=repr, inf_nan_mode="strings")
        except PydanticSerializationError:  # text that is no UTF-8: what cannot be said is left out
            encoded = json.dumps(data, default=repr, ensure_ascii=False).encode("utf-8", "replace")
        return b'{"type":"error","data":%b}' % encoded


def _action_in(frame: bytes | str) -> Any:
    """What a step carries; None for a frame that is none."""
    try:
        message = from_json(frame)
    except ValueError:
        return None
    is_step = isinstance(message, dict) and message.keys() == {"type", "data"} and message["type"] == "step"
    return message["data"] if is_step else None


def _classify(frame: bytes | str, error: ValidationError) -> OpenEnvError:
    try:
        value = from_json(frame)
    except ValueError as cause:
        return InvalidMessage(f"Invalid JSON: {cause}")
    if not isinstance(value, dict):
        return InvalidMessage(f"Invalid JSON: a message is an object, not {type(value).__name__}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        return UnknownMessage(f"Unknown message type: {kind or ''}")
    return InvalidAction("Invalid message", data={"errors": _faults(error)})


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    """The faults as v1 clients know them: places are relative to the action, or to the frame outside of it."""
    if error.error_count() > MOST_FAULTS:
        return too_many_faults(error.error_count())
    faults: list[dict[str, Any]] = json.loads(error.json())
    for fault in faults:
        place = fault["loc"][1:]  # the first part is the tag of the union
        fault["loc"] = place_of(place[1:] if len(place) > 1 and place[0] == "data" else place)
    return faults
