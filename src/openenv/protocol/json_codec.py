"""Protocol v2 in JSON: text frames, with bytes and arrays as objects that are marked.

`{"$bytes": base64}` and `{"$array": {"dtype", "shape", "data": base64}}`. An object that somebody's data holds and
that looks like one of these is written as `{"$object": it}`. NaN and infinity are the bare words NaN, Infinity
and -Infinity, as in v1.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec
from pydantic_core import from_json, to_json

from ..errors import InvalidMessage
from .binary import read_array, write_array
from .codec import Body, Codec, Result
from .plain import DOLLAR, encode_plain, is_plain
from .portable import UNWRITABLE, Portable

__all__ = ["JsonCodec", "has_marks", "unmarked"]

_MARKS = frozenset({"$bytes", "$array", "$object"})


class JsonCodec(Codec):
    """Readable, and within reach of every language."""

    subprotocol: ClassVar[str] = "openenv.v2.json"
    language: ClassVar[str] = "JSON"
    binary: ClassVar[bool] = False

    def encode(self, value: Any) -> bytes:
        try:
            return _write(value)
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def decode(self, frame: bytes | str) -> Any:
        try:
            return _read(frame)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidMessage(f"Invalid JSON: {error}") from None

    def decoder(self, declared: Any) -> Callable[[bytes | bytearray | str], Any]:
        decode = msgspec.json.Decoder(declared).decode

        def read(frame: bytes | bytearray | str) -> Any:
            if has_marks(frame):
                raise ValueError("bytes or arrays: read by `decode` alone")
            return decode(frame)

        return read

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        try:
            text = _write(fields, plain)
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error
        return Body(len(fields), text[1:-1])

    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002
        return b'{"id":%b,%b}' % (b"null" if id is None else b"%d" % id, body.fields)

    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        results = [
            b'{"call":%d,%b}' % (place, body.fields)
            if session is None
            else b'{"call":%d,"session":%b,%b}' % (place, _encode(session), body.fields)
            for place, session, body in items
        ]
        return b'{"id":%d,"ok":true,"results":[%b],"more":%b}' % (
            id,
            b",".join(results),
            b"true" if more else b"false",
        )


def has_marks(text: bytes | bytearray | str) -> bool:
    """Whether a text in JSON may hold marked bytes or arrays."""
    if isinstance(text, str):
        return '"$' in text or "u0024" in text
    return b'"$' in text or b"u0024" in text


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def _write(value: Any, plain: bool = False) -> bytes:
    if plain or is_plain(value):
        try:
            text = encode_plain(value)
        except TypeError:  # not so plain: a declared list of floats that holds a numpy.float64
            return to_json(_portable(value), inf_nan_mode="constants")
        if DOLLAR not in text or b'{"$' not in text:  # an object that looks like a mark must be escaped
            return text
    return to_json(_portable(value), inf_nan_mode="constants")


def _read(frame: bytes | str) -> Any:
    try:
        value = _decode(frame)
    except ValueError:
        value = from_json(frame, allow_inf_nan=True)  # NaN, infinity, numbers of any length; or a better message
    return unmarked(value) if has_marks(frame) else value


def _marked_bytes(data: bytes) -> dict[str, Any]:
    return {"$bytes": b64encode(data).decode()}


def _marked_array(array: Any) -> dict[str, Any]:
    dtype, shape, data = write_array(array)
    return {"$array": {"dtype": dtype, "shape": shape, "data": b64encode(data).decode()}}


def _escaped(fields: dict[str, Any]) -> dict[str, Any]:
    return {"$object": fields} if len(fields) == 1 and not _MARKS.isdisjoint(fields) else fields


_portable = Portable(_marked_bytes, _marked_array, _escaped)


def unmarked(value: Any) -> Any:
    """A value that was read, with what its marks stand for. Raises `ValueError` for marks that are wrong."""
    if isinstance(value, list):
        return [unmarked(content) for content in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, content),) = value.items()
        if key == "$bytes":
            return _bytes(content)
        if key == "$array":
            return _array(content)
        if key == "$object" and isinstance(content, dict):
            value = content
    return {key: unmarked(content) for key, content in value.items()}


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError("$bytes needs a text in base64")
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"$bytes needs a text in base64: {error}") from error


def _array(facts: Any) -> Any:
    if not isinstance(facts, dict) or facts.keys() != {"dtype", "shape", "data"}:
        raise ValueError("$array needs dtype, shape and data")
    return read_array(facts["dtype"], facts["shape"], _bytes(facts["data"]))
