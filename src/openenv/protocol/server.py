"""The server's side of protocols v1 and v2: frames become requests, results become frames."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar, cast, get_args

import msgspec
from pydantic import Field, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import TypedDict  # before Python 3.12, pydantic does not support typing's

from .._exceptions import from_signal
from ..errors import InvalidAction, InvalidMessage, OpenEnvError, UnknownMessage, UsageError
from .arrays import is_array, list_of
from .codecs import Body, Codec, has_marks, is_plain
from .coercion import coercer_of
from .encoding import encode_observation, encode_outcome, encode_state, encode_state_fields
from .errors import MOST_FAULTS, UNSEEDED, error_facts, place_of, raise_unsendable, too_many_faults
from .jsonrpc import encode
from .messages import CALLS, MAX_ID, OPS, BatchableOp, BatchOp, Message, Op, RefusedOp
from .values import encode_plain

_PLACE = re.compile(r" - at `\$(.*)`$", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_INVALID = "Invalid message"
_UNREAD = (ValueError, TypeError, RecursionError, OverflowError)


def _invalid(place: list[str | int], message: str) -> InvalidAction:
    return InvalidAction(_INVALID, data={"errors": [{"type": "message", "loc": place, "msg": message}]})


class ActionReader:
    """Validates the actions of one environment class.

    Args:
        action_type: The action class, or a union of such.
        codec: The encoding of the actions.
    """

    def __init__(self, action_type: Any, codec: Codec):
        adapter: TypeAdapter[Any] = TypeAdapter(action_type)
        self._validator = adapter.validator
        self._coerce = coercer_of(action_type)
        self._binary = codec.binary
        self._decode = codec.decode
        declared = [action_type, *get_args(action_type)]
        base64 = any(getattr(each, "model_config", {}).get("val_json_bytes", "utf8") != "utf8" for each in declared)
        self._read = self._from_json_values if base64 else self._from_values
        self._decode_binary = codec.decoder(Any) if codec.binary and not base64 else None

    def __call__(self, raw: msgspec.Raw | bytes) -> Any:
        """The validated action.

        Raises:
            InvalidAction: It is invalid; `data["errors"]` lists the locations. Also if a validator raises another
                exception, since a frame of one session must not end the connection of many.
        """
        encoded = bytes(raw)
        try:
            if self._decode_binary is not None:
                # `_decode` and `_from_values`, written out: this is the path of nearly every step.
                try:
                    values = self._decode_binary(encoded)
                except _UNREAD:
                    values = self._decode(encoded)  # raises the error with its reason
                try:
                    return self._validator.validate_python(values)
                except ValidationError as error:
                    return self._from_refused(values, error)
            if self._binary or has_marks(encoded):
                return self._read(self._decode(encoded))
            if self._coerce is None:
                return self._validator.validate_json(encoded)
            return self._from_json(encoded)
        except ValidationError as error:
            # Places are relative to the action, as in v1.
            faults = _faults_of(
                error, lambda place: place_of(place) or ["action"], include_url=False, include_input=False
            )
            raise InvalidAction(_INVALID, data={"errors": faults}) from None
        except InvalidMessage as error:
            raise InvalidAction(error.message) from None
        except BaseException as error:
            if from_signal(error):
                raise
            raise InvalidAction(f"the action could not be validated: {type(error).__name__}: {error}") from error

    def _from_json(self, encoded: bytes) -> Any:
        """Validates for a class that also accepts values in other forms."""
        try:
            return self._validator.validate_json(encoded)
        except ValidationError:
            return self._read(self._decode(encoded))

    def _from_values(self, values: Any) -> Any:
        try:
            return self._validator.validate_python(values)
        except ValidationError as error:
            return self._from_refused(values, error)

    def _from_refused(self, values: Any, error: ValidationError) -> Any:
        """Validates values that are invalid in their Python form."""
        coerced = values if self._coerce is None else self._coerce(values)
        if coerced is not values:
            return self._validator.validate_python(coerced)
        # As lists, arrays that do not fit their declaration would be refused with a fault for each element.
        if any(
            fault["type"].startswith("array_") or (is_array(fault["input"]) and fault["type"] == "value_error")
            for fault in error.errors(include_url=False)
        ):
            raise error
        # Strict classes accept a string for an enumeration, a list for a tuple and so on only from JSON.
        try:
            text = to_json(values, fallback=list_of, inf_nan_mode="constants")
        except (PydanticSerializationError, TypeError, RecursionError):
            raise error from None
        return self._validator.validate_json(text)

    def _from_json_values(self, values: Any) -> Any:
        """Validates for a class whose bytes are base64 in JSON: clients send base64 with every codec."""
        if is_plain(values):
            return self._validator.validate_json(encode_plain(values))
        return self._from_values(values)


class StructReader:
    """Reads actions as structs, in half of the time. Other readers read those that it does not.

    Args:
        struct: A msgspec type that reads no action that the class of actions refuses.
        codec: The encoding of the actions.
        otherwise: Reads all others: those in another form, and those that are not valid.
    """

    def __init__(self, struct: type[msgspec.Struct], codec: Codec, otherwise: Callable[[Any], Any]):
        self._decode, self._otherwise = codec.decoder(struct), otherwise

    def __call__(self, raw: Any) -> Any:
        """The action; raises `InvalidAction`."""
        try:
            return self._decode(raw)
        except _UNREAD:
            return self._otherwise(raw)


def _faults_of(
    error: ValidationError, place_in: Callable[[list[Any]], list[Any]], **included: bool
) -> list[dict[str, Any]]:
    """Type, place and message of each fault.

    Args:
        error: The error of a message or an action.
        place_in: Converts the location of a fault to the form for the client.
        included: Further parts of a fault to include, as for pydantic's `errors`.
    """
    if error.error_count() > MOST_FAULTS:
        return too_many_faults(error.error_count())
    faults: list[dict[str, Any]] = json.loads(error.json(**included))
    for fault in faults:
        fault["loc"] = place_in(fault["loc"])
    return faults


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
# The first bytes of a step: of compact writers, and of `json.dumps`.
_STEP, _SPACED_STEP = b'{"type":"step","data":', b'{"type": "step", "data": '
_STEP_LENGTH, _SPACED_LENGTH = len(_STEP), len(_SPACED_STEP)
_BRACE = ord("}")


class ServerProtocol:
    """Reads client frames and writes server frames for one action type.

    Args:
        action_type: The action class (or a union of such) that `step` frames carry.
    """

    def __init__(self, action_type: Any):
        # Frame and action are validated in one pass over the bytes, without a dict in between.
        messages = ResetMessage | StepMessage[action_type] | StateMessage | McpMessage | CloseMessage
        adapter: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[messages, Field(discriminator="type")])
        self._validate = adapter.validator.validate_json
        action = TypeAdapter(action_type).validator
        self._validate_action, self._validate_values = action.validate_json, action.validate_python
        self._coerce = coercer_of(action_type)

    def receive(self, frame: bytes | str) -> ClientMessage:
        """Reads one text frame.

        Raises:
            InvalidMessage: The frame is not JSON.
            UnknownMessage: It is an object without a known `type`.
            InvalidAction: The message or its action is invalid; `data["errors"]` lists the locations.
        """
        try:
            # Nearly every frame. The bytes in between are one complete JSON value, or validation fails, so no other
            # part of the frame is overlooked. The general path costs nearly twice as much.
            if frame[:_STEP_LENGTH] == _STEP and frame[-1] == _BRACE:
                return {"type": "step", "data": self._validate_action(frame[_STEP_LENGTH:-1])}
            if frame[:_SPACED_LENGTH] == _SPACED_STEP and frame[-1] == _BRACE:
                return {"type": "step", "data": self._validate_action(frame[_SPACED_LENGTH:-1])}
        except ValidationError:
            pass  # the general path reports the error and its location
        try:
            message: ClientMessage = self._validate(frame)
        except ValidationError as error:
            return self._read_coerced(frame, error)
        return message

    def _read_coerced(self, frame: bytes | str, error: ValidationError) -> ClientMessage:
        """A step with arrays or bytes in its action, in the forms of v1. For any other frame, raises from `error`."""
        values = coerced = None
        if self._coerce is not None:
            with contextlib.suppress(ValueError):
                message = from_json(frame)
                if isinstance(message, dict) and message.keys() == {"type", "data"} and message["type"] == "step":
                    values = message["data"]
            coerced = self._coerce(values)
        if coerced is values:
            raise _classify(frame, error) from None
        try:
            return {"type": "step", "data": self._validate_values(coerced)}
        except ValidationError:
            raise _classify(frame, error) from None

    @staticmethod
    def observation(observation: Any) -> bytes:
        """The reply to reset and step. Raises `StepFailed` if it cannot be sent."""
        return encode_observation(observation, b'{"type":"observation","data":', b"}")

    @staticmethod
    def unseeded(observation: Any) -> bytes:
        """The reply to a reset with a seed that the environment does not accept. Raises as `observation` does."""
        return encode_observation(observation, b'{"type":"observation","data":', b"}", UNSEEDED)

    @staticmethod
    def state(state: Any) -> bytes:
        """The reply to state. Raises `StepFailed` if it cannot be sent."""
        return b'{"type":"state","data":%b}' % encode_state(state)

    @staticmethod
    def mcp(reply: dict[str, Any]) -> bytes:
        """The reply to a JSON-RPC request, which contains a JSON-RPC reply."""
        return b'{"type":"mcp","data":%b}' % encode(reply)

    @staticmethod
    def error(error: OpenEnvError) -> bytes:
        """An error frame: the v1 code and message, with this package's further facts beside them."""
        data = {**error.data, **error.facts()}
        try:
            encoded = to_json(data, fallback=repr, inf_nan_mode="strings")
        except PydanticSerializationError:  # text that is not UTF-8: omit what cannot be encoded
            encoded = json.dumps(data, default=repr, ensure_ascii=False).encode("utf-8", "replace")
        return b'{"type":"error","data":%b}' % encoded


def _classify(frame: bytes | str, error: ValidationError) -> OpenEnvError:
    try:
        value = from_json(frame)
    except ValueError as cause:
        return InvalidMessage(f"Invalid JSON: {cause}")
    if not isinstance(value, dict):
        return InvalidMessage(f"Invalid JSON: a message must be an object, not {type(value).__name__}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        return UnknownMessage(f"Unknown message type: {kind or ''}")

    def place_in(place: list[Any]) -> list[Any]:
        """The location relative to the action, or else to the frame. Its first part is the tag of the union."""
        return place_of(place[2:] if len(place) > 2 and place[1] == "data" else place[1:])

    return InvalidAction(_INVALID, data={"errors": _faults_of(error, place_in)})


class ServerProtocolV2:
    """Reads client frames and writes server frames for one action type in one codec.

    Args:
        action_type: The action class (or a union of such) of the environment.
        codec: The encoding of frames.
        max_batch: Most calls in one batch.
        batch_type: The type of the actions of a session that owns a batch of episodes; None if none can.
        struct: A struct for the actions of other sessions of a batch (`StructReader`); None for the action class.
        observation_type: The declared type of the environment's observations.

    Attributes:
        action: Reads an action.
        batch_action: Reads the actions of all episodes; None if no session can own a batch.
        observation: The reply to reset and step (`encode_outcome`).
        state: The reply to state (`encode_state_fields`).
        reply, results: The frame of one reply, and of results of a batch (`Codec`).
    """

    def __init__(
        self,
        action_type: Any,
        codec: Codec,
        max_batch: int,
        batch_type: Any = None,
        struct: Any = None,
        observation_type: Any = None,
    ):
        self._observation_type = observation_type
        self._write_with(codec)
        self.action: Callable[[Any], Any] = ActionReader(action_type, codec)
        if struct is not None:
            self.action = StructReader(struct, codec, self.action)
        self.batch_action = None if batch_type is None else ActionReader(batch_type, codec)
        self._max_batch = max_batch
        self._decode = codec.decoder(Message)

    def writing(self, codec: Codec) -> ServerProtocolV2:
        """The same protocol, with replies in another codec. It reads requests as before."""
        other = copy(self)
        other._write_with(codec)
        return other

    def _write_with(self, codec: Codec) -> None:
        self.codec = codec
        self.observation: Callable[..., Body] = partial(encode_outcome, codec=codec, declared=self._observation_type)
        self.state: Callable[[Any], Body] = partial(encode_state_fields, codec=codec)
        self.reply, self.results = codec.reply, codec.results

    def receive(self, frame: bytes | str) -> Message | RefusedOp:
        """Reads one frame of the codec's kind. Returns the error of an invalid frame, and never raises it.

        Returns:
            A request. In a batch, a `RefusedOp` replaces an invalid call.
            For a frame that is not a request, or for a batch over the limit, a `RefusedOp`.
        """
        try:
            message: Message = self._decode(frame)
        except _UNREAD:
            return self._inspect(frame)
        if not message.id:
            return self._inspect(frame)
        if type(message) is BatchOp:
            if len(message.calls) > self._max_batch:
                return self._inspect(frame)
            for call in message.calls:
                if call.id or call.copied:
                    return self._inspect(frame)
        return message

    def _inspect(self, frame: bytes | str) -> Message | RefusedOp:
        """Reads a frame that the fast decoder refuses: first as plain values, then each of its requests separately.

        Returns:
            The request if it is valid after all, otherwise the error.
        """
        try:
            fields = self.codec.decode(frame)
        except InvalidMessage as error:
            return RefusedOp(None, error)
        if not isinstance(fields, dict):
            return RefusedOp(None, InvalidMessage(f"a message must be a map, not {type(fields).__name__}"))
        number = fields.get("id")
        if type(number) is not int or not 1 <= number <= MAX_ID:
            said = "none" if "id" not in fields else f"{number!r:.50}"
            return RefusedOp(
                None, InvalidMessage(f"a message needs an id, an integer from 1 to 2**63 - 1, not {said}")
            )
        if fields.get("op") == "batch" and isinstance(fields.get("calls"), list):
            return self._batch(number, fields)
        message = self._request(number, fields, OPS)
        return message if isinstance(message, RefusedOp) else cast(Message, message)

    def _batch(self, number: int, fields: dict[str, Any]) -> BatchOp | RefusedOp:
        calls = fields["calls"]
        if len(calls) > self._max_batch:
            return RefusedOp(
                number,
                UsageError(
                    f"a batch of {len(calls)} calls is over the limit of {self._max_batch}: "
                    "send smaller batches or raise the server's max_batch (OPENENV_MAX_BATCH)"
                ),
            )
        # Validated with a placeholder, since an empty batch is invalid; the calls are read one by one below.
        envelope = fields | {"calls": [{"op": "state", "session": ""}] if calls else []}
        batch = self._request(number, envelope, OPS)
        if isinstance(batch, BatchOp):
            batch.calls = [cast(BatchableOp, self._call(call)) for call in calls]
        return cast("BatchOp | RefusedOp", batch)

    def _call(self, fields: Any) -> Op | RefusedOp:
        if not isinstance(fields, dict):
            return RefusedOp(0, InvalidAction(f"a call must be a map, not {type(fields).__name__}"))
        session = fields.get("session")
        name = next((name for name in ("id", "copied") if name in fields), None)
        if name is not None:
            refused = RefusedOp(0, _invalid([name], f"a call of a batch must not have {name!r}"))
        else:
            message = self._request(0, fields, CALLS)
            if not isinstance(message, RefusedOp):
                return message
            refused = message
        return refused._replace(session=session if isinstance(session, str) else None)

    def _request(self, number: int, fields: dict[Any, Any], known: Mapping[str, type[Op]]) -> Op | RefusedOp:
        op = fields.get("op")
        declared = known.get(op) if isinstance(op, str) else None
        if declared is None:
            return RefusedOp(number, UnknownMessage(f"unknown op {op!r:.50}: known ops are {', '.join(known)}"))
        if "action" in fields and "action" in declared.__struct_fields__:
            try:
                fields = fields | {"action": msgspec.Raw(self.codec.encode(fields["action"]))}
            except ValueError as error:
                return RefusedOp(number, _invalid(["action"], str(error)))
        try:
            return msgspec.convert(fields, declared)
        except (ValueError, TypeError, RecursionError) as error:
            place = _PLACE.search(str(error))
            parts = _PART.findall(place[1]) if place else ()
            found = [name or (int(index) if index.isdigit() else index) for name, index in parts]
            return RefusedOp(number, _invalid(found, _PLACE.sub("", str(error))))

    def receive_other(self, frame: bytes | str) -> RefusedOp:
        """Refuses a frame of the other kind: a text frame where binary frames are spoken, or the reverse."""
        codec = self.codec
        got, spoken = ("text", "binary") if codec.binary else ("binary", "text")
        return RefusedOp(
            None,
            InvalidMessage(
                f"a {got} frame of {len(frame)} bytes: {codec.subprotocol} speaks {codec.language} in {spoken} frames"
            ),
        )

    def ok(self, fields: Mapping[str, Any]) -> Body:
        """A reply with these fields. Raises `ValueError` if they cannot be encoded."""
        return self.codec.body({"ok": True, **fields})

    def mcp(self, reply: Mapping[str, Any]) -> Body:
        """The reply to mcp: a result or an error of JSON-RPC. Raises `StepFailed` if it cannot be sent."""
        try:
            return self.ok({"reply": reply})
        except BaseException as error:  # noqa: BLE001 - foreign code: reading its values may raise any exception
            raise_unsendable(reply, error)

    def error(self, error: OpenEnvError) -> Body:
        """The reply that reports an error."""
        return self.codec.body({"error": error_facts(error)})

    def event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        """The frame of an event, which answers no request."""
        return self.codec.encode({"event": name, **fields})
