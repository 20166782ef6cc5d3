"""Actions out of requests: encoded values become what the environment's action class declares."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ..errors import InvalidAction, InvalidMessage
from ..interrupts import from_signal
from .binary import list_of
from .codec import Codec
from .json_codec import has_marks
from .lifting import lifter_of
from .plain import encode_plain, is_plain
from .report import MOST_FAULTS, place_of, too_many_faults

__all__ = ["ActionReader"]

_INVALID = "Invalid message"


class ActionReader:
    """Validates the actions of one environment class.

    Args:
        action_type: The action class, or a union of such.
        codec: What the actions are written in.
    """

    def __init__(self, action_type: Any, codec: Codec):
        adapter: TypeAdapter[Any] = TypeAdapter(action_type)
        self._validator = adapter.validator
        self._lift = lifter_of(action_type)
        self._binary = codec.binary
        self._decode = codec.decode
        self._read = self._as_in_json if _has_own_bytes(action_type) else self._from_values

    def __call__(self, raw: msgspec.Raw | bytes) -> Any:
        """The validated action.

        Raises:
            InvalidAction: It does not validate; `data["errors"]` says where. Also for a validator that raises what
                a validator should not: the frame of one session must not end the connection of many.
        """
        encoded = bytes(raw)
        try:
            if self._binary or has_marks(encoded):
                return self._read(self._decode(encoded))
            try:
                return self._validator.validate_json(encoded)
            except ValidationError:
                if self._lift is None:
                    raise
                return self._read(self._decode(encoded))
        except ValidationError as error:
            raise InvalidAction(_INVALID, data={"errors": _faults(error)}) from None
        except InvalidMessage as error:
            raise InvalidAction(error.message) from None
        except BaseException as error:
            if from_signal(error):
                raise
            raise InvalidAction(f"the action could not be validated: {type(error).__name__}: {error}") from error

    def _from_values(self, values: Any) -> Any:
        try:
            return self._validator.validate_python(values)
        except ValidationError as error:
            lifted = values if self._lift is None else self._lift(values)
            if lifted is not values:
                return self._validator.validate_python(lifted)
            # Strict classes take a text for an enumeration, a list for a tuple and so on from JSON alone.
            try:
                text = to_json(values, fallback=_as_list, inf_nan_mode="constants")
            except (PydanticSerializationError, TypeError, RecursionError):
                raise error from None
            return self._validator.validate_json(text)

    def _as_in_json(self, values: Any) -> Any:
        """For a class whose bytes are base64 in JSON: clients send them as it writes them, whatever the codec is."""
        if is_plain(values):
            return self._validator.validate_json(encode_plain(values))
        return self._from_values(values)


def _has_own_bytes(action_type: Any) -> bool:
    declared = [action_type, *get_args(action_type)]
    return any(getattr(each, "model_config", {}).get("val_json_bytes", "utf8") != "utf8" for each in declared)


def _as_list(array: Any) -> Any:
    return list_of(array)  # all else that a codec reads JSON can say


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    """Type, place and message of each fault, places relative to the action as in v1; without the input."""
    if error.error_count() > MOST_FAULTS:
        return too_many_faults(error.error_count())
    faults: list[dict[str, Any]] = msgspec.json.decode(error.json(include_url=False, include_input=False))
    for fault in faults:
        fault["loc"] = place_of(fault["loc"]) or ["action"]
    return faults
