"""Actions out of requests: encoded values become what the environment's action class declares."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ..errors import InvalidAction, InvalidMessage
from .codec import Codec
from .json_codec import has_marks
from .report import MOST_FAULTS, too_many_faults

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
        self._binary = codec.binary
        self._decode = codec.decode

    def __call__(self, raw: msgspec.Raw | bytes) -> Any:
        """The validated action.

        Raises:
            InvalidAction: It does not validate; `data["errors"]` says where. Also for a validator that raises what
                a validator should not: the frame of one session must not end the connection of many.
        """
        encoded = bytes(raw)
        try:
            if self._binary or has_marks(encoded):
                return self._from_values(self._decode(encoded))
            return self._validator.validate_json(encoded)
        except ValidationError as error:
            raise InvalidAction(_INVALID, data={"errors": _faults(error)}) from None
        except InvalidMessage as error:
            raise InvalidAction(error.message) from None
        except Exception as error:
            raise InvalidAction(f"the action could not be validated: {type(error).__name__}: {error}") from error

    def _from_values(self, values: Any) -> Any:
        try:
            return self._validator.validate_python(values)
        except ValidationError as error:
            # Strict classes take a text for an enumeration, a list for a tuple and so on from JSON alone.
            try:
                text = to_json(values, fallback=_as_list, inf_nan_mode="constants")
            except (PydanticSerializationError, TypeError, RecursionError):
                raise error from None
            return self._validator.validate_json(text)


def _as_list(array: Any) -> Any:
    return array.tolist()  # all else that a codec reads JSON can say


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    """Type, place and message of each fault, places relative to the action as in v1; without the input."""
    if error.error_count() > MOST_FAULTS:
        return too_many_faults(error.error_count())
    faults: list[dict[str, Any]] = msgspec.json.decode(error.json(include_url=False, include_input=False))
    for fault in faults:
        fault["loc"] = fault["loc"] or ["action"]
    return faults
