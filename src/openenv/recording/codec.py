"""Values as records hold them: JSON that every reader takes, with what is large beside it."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Mapping
from itertools import count
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from ..protocol.binary import write_array
from ..protocol.codec import Body
from ..protocol.json_codec import JsonCodec
from ..protocol.plain import DOLLAR, encode_plain, is_plain
from ..protocol.plan import is_plain_model, is_tight
from ..protocol.portable import UNWRITABLE, Portable
from .blobs import LARGE_BYTES, Blob, npy_of

__all__ = ["RecordCodec"]

_MARKS = frozenset({"$bytes", "$array", "$object"})
# No text of a client's can be taken for one of these: nobody can guess them.
_SECRET = secrets.token_hex(24)
_numbers = count()
_UNKNOWN: Any = object()
# What was found out of classes, once for each: this is on the path of every step.
_loose: dict[type[Any], tuple[str, ...] | None] = {}


class RecordCodec(JsonCodec):
    """The JSON of protocol v2, but NaN and infinity are texts, since their bare words are no JSON, and what is large
    is a `Blob`, whose hash is not known yet.

    One for each tap: between two calls of `take_blobs` it writes one line.

    Attributes:
        blobs: What is to be stored beside what was written since.
    """

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self._portable = Portable(self._of_bytes, self._of_array, _escaped)

    def take_blobs(self) -> list[Blob]:
        """Takes them away."""
        blobs, self.blobs = self.blobs, []
        return blobs

    def encode(self, value: Any) -> bytes:
        cls = type(value)
        loose = _loose.get(cls, _UNKNOWN)
        if loose is _UNKNOWN:
            loose = _loose[cls] = _loose_fields(cls)
        try:
            if loose is None:
                return self._write(value, False)
            fields = value.__dict__
            plain = True
            for name in loose:
                if (inside := fields.get(name)) and not is_plain(inside):
                    plain = False
            return self._write(fields, plain)
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        """What came of a call, without what a record does not hold. The dict is changed: nobody needs it again."""
        assert type(fields) is dict
        del fields["ok"]
        fields.pop("metadata", None)
        reward = fields["reward"]
        if reward is not None and type(reward) is not float:
            fields["reward"] = float(reward)  # one type for the column of all environments
        try:
            return Body(len(fields), self._write(fields, plain)[1:-1])
        except UNWRITABLE as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error

    def _write(self, value: Any, plain: bool) -> bytes:
        if plain or is_plain(value):
            try:
                text = encode_plain(value, "strings")
            except TypeError:  # not so plain
                return to_json(self._portable(value), inf_nan_mode="strings")
            if DOLLAR not in text or b'{"$' not in text:
                return text
        return to_json(self._portable(value), inf_nan_mode="strings")

    def _of_bytes(self, data: bytes) -> dict[str, Any]:
        if len(data) < LARGE_BYTES:
            return {"$bytes": b64encode(data).decode()}
        return {"$bytes": {"sha256": self._beside(".bin", data), "size": len(data)}}

    def _of_array(self, array: Any) -> dict[str, Any]:
        dtype, shape, data = write_array(array)
        if len(data) < LARGE_BYTES:
            return {"$array": {"dtype": dtype, "shape": shape, "data": b64encode(data).decode()}}
        return {
            "$array": {"dtype": dtype, "shape": shape, "sha256": self._beside(".npy", *npy_of(dtype, shape, data))}
        }

    def _beside(self, suffix: str, *parts: bytes) -> str:
        token = f"{_SECRET}{next(_numbers):016x}"
        self.blobs.append(Blob(token.encode(), suffix, parts))
        return token


def _loose_fields(cls: type[Any]) -> tuple[str, ...] | None:
    """The fields of a class that may hold what is not plain; None: instances are not simply their dict."""
    if not issubclass(cls, BaseModel) or not is_plain_model(cls):
        return None
    return tuple(name for name, field in cls.model_fields.items() if not is_tight(field.annotation))


def _escaped(fields: dict[str, Any]) -> dict[str, Any]:
    return {"$object": fields} if len(fields) == 1 and not _MARKS.isdisjoint(fields) else fields
