"""The subprotocols of v2 and their codecs: JSON in text frames, msgpack in binary frames."""

from __future__ import annotations

import binascii
import math
import secrets
import struct
import sys
import threading
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any, ClassVar, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.msgpack import Ext
from pydantic_core import from_json, to_json

from ..errors import InvalidMessage
from .arrays import (
    SMALL_BYTES,
    array_parts,
    byte_size,
    is_array,
    pack_array,
    read_array,
    small_header,
    unpack_array,
    write_array,
)
from .buffers import Block
from .values import DOLLAR, SCALARS, UNWRITABLE, Portable, encode_json, encode_plain

# In the order in which our own client prefers them.
SUBPROTOCOLS = ("openenv.v2.msgpack", "openenv.v2.json")


def choose(offered: Iterable[str]) -> str | None:
    """The subprotocol for the answer to a handshake: the first known one in the client's list.

    None means that the connection uses v1, as for clients that offer no subprotocol.
    """
    return next((name for name in offered if name in SUBPROTOCOLS), None)


class Body(Struct, frozen=True, gc=False):
    """Encoded entries of a map, without the map's header: a reply without its `id`.

    Attributes:
        count: The number of entries.
        fields: The encoded entries, `ok` or `error` first.
        blocks: Keep its arrays that are in shared memory; empty for most bodies.
    """

    count: int
    fields: bytes
    blocks: tuple[Block, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the entries, with their arrays in shared memory."""
        size = len(self.fields)
        return size + sum(block.size for block in self.blocks) if self.blocks else size


# The result of one call of a batch: its index in `calls`, its session if it has one, its reply.
Result = tuple[int, str | None, Body]


class Codec(ABC):
    """An encoding of messages. It has no state, so one object serves all connections.

    Attributes:
        subprotocol: Its name in the handshake.
        language: Its name in messages for people.
        binary: Whether its frames are binary frames; otherwise they are text frames in UTF-8.
        list_bytes: A declared array (`openenv.arrays.Array`) of at most this many bytes is sent as nested lists.
        compresses: Whether a declared array with an `encoding` is sent as an image file.
    """

    subprotocol: ClassVar[str]
    language: ClassVar[str]
    binary: ClassVar[bool]
    list_bytes: ClassVar[float] = math.inf
    compresses: ClassVar[bool] = False

    @property
    def leaves(self) -> frozenset[type[Any]]:
        """The types of values without parts that it encodes by itself."""
        return SCALARS

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encodes a value: JSON values, bytes, numpy arrays, models, dataclasses, dates and the like.

        Raises:
            ValueError: It contains a value that cannot be encoded; the message names it.
        """

    @abstractmethod
    def decode(self, frame: bytes | memoryview | str) -> Any:
        """Decodes a value. Restores bytes and, if numpy is installed, writable arrays.

        Raises:
            InvalidMessage: The frame is not in this encoding, is nested too deeply, or has an array whose size does
                not match its header.
        """

    @abstractmethod
    def decoder(self, declared: Any) -> Callable[[bytes | bytearray | str], Any]:
        """A fast decoder for frames of one declared type; `msgspec.Raw` fields stay encoded.

        A frame for which it raises (`ValueError`, `RecursionError`) may still be valid: only `decode` reads every
        valid frame.
        """

    @abstractmethod
    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        """Encodes the entries of a map.

        Args:
            fields: The entries.
            plain: Whether they are known to be plain (`ObservationPlan.is_plain`).

        Raises:
            ValueError: As `encode` does.
        """

    def fields(self, body: Body) -> dict[str, Any]:
        """Decodes the entries of a body that this codec has encoded. Raises `InvalidMessage` as `decode` does."""
        fields: dict[str, Any] = self.decode(self.reply(1, body))
        del fields["id"]
        return fields

    @abstractmethod
    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002 - what the wire calls it
        """The frame of one reply; without an id, of an error that does not answer a particular request."""

    @abstractmethod
    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        """The frame for results of a batch. `more`: whether further frames follow."""


@cache
def codec_of(subprotocol: str) -> Codec:
    """The codec of a negotiated subprotocol.

    Raises:
        ValueError: It is unknown.
    """
    if subprotocol == "openenv.v2.msgpack":
        return MsgpackCodec()
    if subprotocol == "openenv.v2.json":
        return JsonCodec()
    raise ValueError(f"no codec for {subprotocol!r}: known subprotocols are {' and '.join(SUBPROTOCOLS)}")


_TEXT = frozenset({str})
_MAP = frozenset({dict})

# Most levels of nesting of a plain value. Deeper values reach the limits of the encoders.
MAX_DEPTH = 100


def is_plain(value: Any, depth: int = MAX_DEPTH, leaves: frozenset[type[Any]] = SCALARS) -> bool:
    """Whether a value has only dicts with string keys, lists, tuples, strings, numbers, booleans and None.

    Their types must be exactly these, since subclasses may be encoded differently. All encoders agree on a plain
    value. A value that is deeper than `depth`, or contains itself, is not plain.

    Args:
        value: The value.
        depth: Most levels of nesting.
        leaves: The types of values without parts: of a codec, or those of all codecs.
    """
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in leaves
    if depth == 0 or leaves.issuperset(map(type, value)):
        return depth > 0
    inner = [each for each in value if type(each) not in leaves]
    if len(inner) > 1 and _MAP.issuperset(map(type, inner)):  # checks the many calls of a batch together
        values = [*chain.from_iterable(map(dict.values, inner))]
        return _TEXT.issuperset(map(type, chain.from_iterable(inner))) and is_plain(values, depth - 1, leaves)
    return all(is_plain(each, depth - 1, leaves) for each in inner)


_MARKS = frozenset({"$bytes", "$array", "$object"})


class JsonCodec(Codec):
    """JSON: readable, and available in every programming language."""

    subprotocol: ClassVar[str] = "openenv.v2.json"
    language: ClassVar[str] = "JSON"
    binary: ClassVar[bool] = False

    def encode(self, value: Any, plain: bool = False) -> bytes:
        try:
            if plain or is_plain(value):
                try:
                    text = encode_plain(value)
                    # An object that looks like a mark must be escaped.
                    if DOLLAR not in text or b'{"$' not in text:
                        return text
                except TypeError:  # not plain after all: a declared list of floats that contains a numpy.float64
                    pass
            return to_json(_portable_json(value), inf_nan_mode="constants")
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def decode(self, frame: bytes | memoryview | str) -> Any:
        try:
            if isinstance(frame, memoryview):
                frame = bytes(frame)
            try:
                value = _decode_json(frame)
            except ValueError:
                # NaN, infinity, numbers of any length; or a better message
                value = from_json(frame, allow_inf_nan=True)
            return unmarked(value) if has_marks(frame) else value
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidMessage(f"Invalid JSON: {error}") from None

    def decoder(self, declared: Any) -> Callable[[bytes | bytearray | str], Any]:
        decode = msgspec.json.Decoder(declared).decode

        def read(frame: bytes | bytearray | str) -> Any:
            if has_marks(frame):
                raise ValueError("the frame may have bytes or arrays, which only `decode` reads")
            return decode(frame)

        return read

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        return Body(len(fields), self.encode(fields, plain)[1:-1])

    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002
        return b'{"id":%b,%b}' % (b"null" if id is None else b"%d" % id, body.fields)

    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        results = [
            b'{"call":%d,%b}' % (place, body.fields)
            if session is None
            else b'{"call":%d,"session":%b,%b}' % (place, encode_json(session), body.fields)
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


_decode_json = msgspec.json.Decoder().decode


def _mark_array(array: Any) -> dict[str, Any]:
    dtype, shape, data = write_array(array)
    return {"$array": {"dtype": dtype, "shape": shape, "data": b64encode(data).decode()}}


def escape_marks(fields: dict[str, Any]) -> dict[str, Any]:
    """A dict that cannot be taken for marked bytes, a marked array, or an escaped dict."""
    return {"$object": fields} if len(fields) == 1 and not _MARKS.isdisjoint(fields) else fields


_portable_json = Portable(
    of_bytes=lambda data: {"$bytes": b64encode(data).decode()},
    of_array=_mark_array,
    of_map=escape_marks,
)


def unmarked(value: Any) -> Any:
    """A decoded value with bytes and arrays in place of its marks. Raises `ValueError` for invalid marks."""
    if isinstance(value, list):
        return [unmarked(content) for content in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, content),) = value.items()
        if key == "$bytes":
            return _read_marked_bytes(content)
        if key == "$array":
            if not isinstance(content, dict) or content.keys() != {"dtype", "shape", "data"}:
                raise ValueError("$array needs dtype, shape and data")
            return read_array(content["dtype"], content["shape"], _read_marked_bytes(content["data"]))
        if key == "$object" and isinstance(content, dict):
            value = content
    return {key: unmarked(content) for key, content in value.items()}


def _read_marked_bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError("$bytes needs a string in base64")
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"$bytes needs a string in base64: {error}") from error


ARRAY = 1


class MsgpackCodec(Codec):
    """msgpack: smaller and faster than JSON; an array costs one copy."""

    subprotocol: ClassVar[str] = "openenv.v2.msgpack"
    language: ClassVar[str] = "msgpack"
    binary: ClassVar[bool] = True
    list_bytes: ClassVar[float] = -1
    compresses: ClassVar[bool] = True

    @property
    def leaves(self) -> frozenset[type[Any]]:
        return _leaves_of(sys.modules.get("numpy"))

    def encode(self, value: Any) -> bytes:
        try:
            return _written(value if is_plain(value, leaves=self.leaves) else _portable_msgpack(value))
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as msgpack: {error}") from error

    def decode(self, frame: bytes | memoryview | str) -> Any:
        return self._decode(frame, _decode_msgpack)

    @staticmethod
    def _decode(frame: bytes | memoryview | str, decode: Callable[[bytes], Any]) -> Any:
        try:
            return decode(cast(bytes, frame))  # a str is refused like other invalid data
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise InvalidMessage(f"Invalid msgpack: {error}") from None

    def decoder(self, declared: Any) -> Callable[[bytes | bytearray | str], Any]:
        decode = msgspec.msgpack.Decoder(declared, ext_hook=read_extension).decode
        return cast("Callable[[bytes | bytearray | str], Any]", decode)

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        count = len(fields)
        if plain and count < len(_SMALL):  # nearly every step
            try:
                return self._body(count, fields, 1)
            except UNWRITABLE:  # not plain after all: a declared list of floats that contains a numpy.float64
                pass
        try:
            portable = fields if is_plain(fields, leaves=self.leaves) else _portable_msgpack(fields)
            return self._body(count, portable, len(map_header(count)))
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as msgpack: {error}") from error

    def _body(self, count: int, fields: Any, header: int) -> Body:
        """The body of portable fields, without the map header of `header` bytes. Raises `UNWRITABLE`."""
        return Body(count, _written(fields, header))

    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002
        return b"%b\xa2id%b%b" % (map_header(body.count + 1), _encode_msgpack(id), body.fields)

    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        parts: list[bytes] = []
        count = 0
        for place, session, body in items:
            count += 1
            if session is None:
                parts += (b"%b\xa4call%b" % (map_header(body.count + 1), _encode_msgpack(place)), body.fields)
            else:
                # `map_header`, written out: this is the path of nearly every step.
                header = _SMALL[body.count + 2] if body.count < 14 else map_header(body.count + 2)
                parts += (
                    b"%b\xa4call%b\xa7session%b" % (header, _encode_msgpack(place), _encode_msgpack(session)),
                    body.fields,
                )
        members = bytes((0x90 | count,)) if count < 16 else struct.pack(">BI", 0xDD, count)
        envelope = b"\x84\xa2id%b\xa2ok\xc3\xa7results%b" % (_encode_msgpack(id), members)
        return b"".join((envelope, *parts, b"\xa4more\xc3" if more else b"\xa4more\xc2"))


@cache
def _leaves_of(numpy: Any) -> frozenset[type[Any]]:
    return SCALARS | {bytes} if numpy is None else SCALARS | {bytes, numpy.ndarray}


def map_header(count: int) -> bytes:
    """The first bytes of a map of `count` entries."""
    if count < 16:
        return _SMALL[count]
    return struct.pack(">BH", 0xDE, count) if count < 1 << 16 else struct.pack(">BI", 0xDF, count)


def read_extension(code: int, data: memoryview) -> Any:
    """The value of an extension type. Raises `ValueError` for an unknown one, and as `unpack_array` does."""
    if code != ARRAY:
        raise ValueError(f"unknown extension type {code}: only {ARRAY} (an array) is known")
    return unpack_array(data)


# Stands for a large array in an encoded value. A peer cannot guess it, so none of its strings contains it.
_PLACEHOLDER = b"\xc1" + secrets.token_bytes(23)


def _no_place(array: Any) -> None:
    return None


class _Writer(threading.local):
    """An encoder of one thread. `encode` puts placeholders for large arrays, which are then in `arrays`.

    Attributes:
        place: See `write_placing`.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.place: Callable[[Any], Ext | None] = _no_place
        self.encode = msgspec.msgpack.Encoder(enc_hook=self._extension).encode

    def _extension(self, value: Any) -> Ext | Raw:
        header = small_header(value)
        if header is not None:  # nearly every array of numbers
            return Ext(ARRAY, header + value.tobytes())
        if not is_array(value):
            raise TypeError(f"a {type(value).__name__} cannot be sent")
        if byte_size(value) < SMALL_BYTES:
            return Ext(ARRAY, pack_array(value))
        if (placed := self.place(value)) is not None:
            return placed
        self.arrays.append(value)
        return Raw(_PLACEHOLDER)


_writer = _Writer()


def write_placing(value: Any, start: int, place: Callable[[Any], Ext | None]) -> bytes:
    """As `_written`, but writes a large array as what `place` returns; for None, with its elements."""
    _writer.place = place
    try:
        return _written(value, start)
    finally:
        _writer.place = _no_place


def _written(value: Any, start: int = 0) -> bytes:
    """A portable value, without its first bytes."""
    try:
        encoded = _writer.encode(value)
        if not _writer.arrays:
            return encoded[start:] if start else encoded
        first, *rest = encoded.split(_PLACEHOLDER)
        parts: list[Any] = [first[start:]]
        for array, after in zip(_writer.arrays, rest, strict=True):
            header, elements = array_parts(array)
            extension = struct.pack(">BIB", 0xC9, len(header) + elements.nbytes, ARRAY)
            parts += (extension, header, elements, after)
        return b"".join(parts)
    finally:
        if _writer.arrays:
            _writer.arrays.clear()


_SMALL = [bytes([0x80 | count]) for count in range(16)]
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_msgpack = msgspec.msgpack.Decoder(ext_hook=read_extension).decode
_portable_msgpack = Portable(bytes, lambda array: array, dict)
