"""Protocol v2 in msgpack: binary frames, bytes as they are, arrays as extension type 1 (`binary.pack_array`)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, cast

import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from ..errors import InvalidMessage
from .binary import pack_array, unpack_array
from .codec import Body, Codec, Result
from .plain import is_plain
from .portable import UNWRITABLE, Portable

__all__ = ["ARRAY", "MsgpackCodec"]

ARRAY = 1


class MsgpackCodec(Codec):
    """Smaller and faster, and arrays cost a copy."""

    subprotocol: ClassVar[str] = "openenv.v2.msgpack"
    language: ClassVar[str] = "msgpack"
    binary: ClassVar[bool] = True

    def encode(self, value: Any) -> bytes:
        try:
            return _write(value)
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as msgpack: {error}") from error

    def decode(self, frame: bytes | str) -> Any:
        try:
            return _decode(cast(bytes, frame))  # a text is refused like other nonsense
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise InvalidMessage(f"Invalid msgpack: {error}") from None

    def decoder(self, declared: Any) -> Callable[[bytes | bytearray | str], Any]:
        decode = msgspec.msgpack.Decoder(declared, ext_hook=_extension).decode
        return cast("Callable[[bytes | bytearray | str], Any]", decode)

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        count = len(fields)
        if plain and count < len(_SMALL):  # nearly every step
            try:
                return Body(count, _encode(fields)[1:])
            except UNWRITABLE:  # not so plain: a declared list of floats that holds a numpy.float64
                pass
        try:
            written = _write(fields)
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as msgpack: {error}") from error
        return Body(count, written[len(_map(count)) :])

    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002
        return b"%b\xa2id%b%b" % (_map(body.count + 1), _encode(id), body.fields)

    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        results = [
            Raw(b"%b\xa4call%b%b" % (_map(body.count + 1), _encode(place), body.fields))
            if session is None
            else Raw(
                b"%b\xa4call%b\xa7session%b%b" % (_map(body.count + 2), _encode(place), _encode(session), body.fields)
            )
            for place, session, body in items
        ]
        return _encode({"id": id, "ok": True, "results": results, "more": more})


def _write(value: Any) -> bytes:
    return _encode(value if is_plain(value) else _portable(value))


def _map(count: int) -> bytes:
    """What a map of so many entries starts with."""
    if count < 16:
        return _SMALL[count]
    return struct.pack(">BH", 0xDE, count) if count < 1 << 16 else struct.pack(">BI", 0xDF, count)


def _extension(code: int, data: memoryview) -> Any:
    if code != ARRAY:
        raise ValueError(f"extension type {code}: only {ARRAY} (an array) is known")
    return unpack_array(data)


def _packed(array: Any) -> Ext:
    return Ext(ARRAY, pack_array(array))


_SMALL = [bytes([0x80 | count]) for count in range(16)]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=_extension).decode
_portable = Portable(bytes, _packed, dict)
