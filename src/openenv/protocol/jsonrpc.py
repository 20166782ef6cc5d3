"""JSON-RPC 2.0, the protocol of `/mcp`: decodes requests and encodes replies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from .values import UNWRITABLE, encode_json

Fields = dict[str, Any]


class JsonRpcErrorCode(IntEnum):
    """The error codes of JSON-RPC."""

    PARSE_ERROR = -32700
    """Not JSON."""
    INVALID_REQUEST = -32600
    """Valid JSON that is not a request."""
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    SERVER_ERROR = -32000
    """No session is free (`data.active_sessions`, `data.max_sessions`), or another error of the server."""


class RpcError(Exception):
    """An error in the form of a reply.

    Attributes:
        code: One of `JsonRpcErrorCode`.
        message: The cause, and the next step.
        data: Further facts, or None.
    """

    def __init__(self, code: int, message: str, data: Any = None):
        super().__init__(message)
        self.code = int(code)
        self.message = message
        self.data = data


class RpcRequest(NamedTuple):
    """One request.

    Attributes:
        id: The string or number that its reply repeats; None if it has none.
        method: The name of the method.
        params: The arguments of the method.
        expects: Whether it has an id, and so expects a reply. A notification has none.
    """

    id: str | int | float | None
    method: str
    params: Fields
    expects: bool


# Valid types of an id, except bool, which is a subclass of int.
_IDS = (str, int, float, type(None))
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})


def read(text: bytes | str) -> Any:
    """The JSON value of a message.

    Raises:
        RpcError: It is not JSON, or neither an object nor a list of objects.
    """
    try:
        value = from_json(text)
    except (ValueError, RecursionError) as error:
        raise RpcError(JsonRpcErrorCode.PARSE_ERROR, f"Parse error: {error}") from None
    if not isinstance(value, (dict, list)):
        raise RpcError(
            JsonRpcErrorCode.PARSE_ERROR, f"Parse error: a message must be an object, not {type(value).__name__}"
        )
    return value


def read_one(value: Any) -> RpcRequest:
    """One request out of a JSON value.

    Raises:
        RpcError: It is not a request; the message gives the reason.
    """
    if not isinstance(value, dict):
        raise _invalid(f"a request must be an object, not {type(value).__name__}")
    if value.get("jsonrpc") != "2.0":
        raise _invalid('it needs "jsonrpc": "2.0"')
    method, params, request_id = value.get("method"), value.get("params"), value.get("id")
    if not isinstance(method, str):
        raise _invalid("it needs a method, which is text")
    if isinstance(request_id, bool) or not isinstance(request_id, _IDS):
        raise _invalid("its id must be text or a number")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise _invalid(f"its params must be an object, not {type(params).__name__}")
    if not _KEYS.issuperset(value):
        raise _invalid(f"unknown keys: {', '.join(sorted(map(repr, value.keys() - _KEYS)))}")
    return RpcRequest(request_id, method, params, "id" in value)


def result_reply(request_id: Any, result: Any) -> Fields:
    """The reply to a request that succeeded."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_reply(request_id: Any, fault: RpcError) -> Fields:
    """The reply to a request that failed."""
    error = {"code": fault.code, "message": fault.message, "data": fault.data}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def encode(fields: Mapping[str, Any] | list[Fields]) -> bytes:
    """One or several replies as JSON. A result that cannot be encoded becomes an error."""
    try:
        return encode_json(fields)
    except UNWRITABLE:
        pass
    try:
        return to_json(fields, inf_nan_mode="null")
    except (PydanticSerializationError, *UNWRITABLE) as error:
        fault = RpcError(JsonRpcErrorCode.INTERNAL_ERROR, f"the result cannot be written as JSON: {error}")
        return encode_json(error_reply(fields.get("id") if isinstance(fields, Mapping) else None, fault))


def _invalid(why: str) -> RpcError:
    return RpcError(JsonRpcErrorCode.INVALID_REQUEST, f"Invalid request: {why}")
