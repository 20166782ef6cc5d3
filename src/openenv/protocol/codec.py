"""How the messages of protocol v2 become frames and back. Two codecs: JSON and msgpack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar

from msgspec import Struct

from .negotiation import SUBPROTOCOLS

__all__ = ["Body", "Codec", "Result", "codec_of"]


class Body(Struct, frozen=True, gc=False):
    """Entries of a map, encoded, without the map around them: what a reply says beside its `id`.

    Attributes:
        count: How many entries.
        fields: The entries as they stand in a frame, `ok` or `error` first.
    """

    count: int
    fields: bytes


# Of one call of a batch: its place in `calls`, its session if it has one, its reply.
Result = tuple[int, str | None, Body]


class Codec(ABC):
    """One way to write messages. Stateless, so one serves all connections.

    Attributes:
        subprotocol: What it is called in the handshake.
        language: What it is called in a message to a human.
        binary: Whether its frames are binary frames; the other kind are text frames in UTF-8.
    """

    subprotocol: ClassVar[str]
    language: ClassVar[str]
    binary: ClassVar[bool]

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Writes a value: what JSON has, bytes, numpy arrays, models, dataclasses, dates and the like.

        Raises:
            ValueError: It holds what cannot be written; the message says what.
        """

    @abstractmethod
    def decode(self, frame: bytes | str) -> Any:
        """Reads a value. Bytes and arrays are bytes and (where numpy is installed) writable arrays again.

        Raises:
            InvalidMessage: Not this language, too deep, an array whose size is not what it says.
        """

    @abstractmethod
    def decoder(self, declared: Any) -> Callable[[bytes | bytearray | str], Any]:
        """A fast reader for frames of one declared type; `msgspec.Raw` fields stay encoded.

        What it raises (`ValueError`, `RecursionError`) does not yet mean that the frame is wrong: only `decode`
        reads every frame.
        """

    @abstractmethod
    def body(self, fields: Mapping[str, Any], plain: bool = False) -> Body:
        """Writes the entries of a map.

        Args:
            fields: The entries.
            plain: They are known to be plain (`ObservationPlan.is_plain`).

        Raises:
            ValueError: As `encode` does.
        """

    @abstractmethod
    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002 - what the wire calls it
        """The frame of one reply; without an id, one that answers no request in particular."""

    @abstractmethod
    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        """The frame of results of a batch, and whether further ones follow."""


@cache
def codec_of(subprotocol: str) -> Codec:
    """The codec of a negotiated subprotocol.

    Raises:
        ValueError: Nobody knows it.
    """
    if subprotocol == "openenv.v2.msgpack":
        from .msgpack_codec import MsgpackCodec

        return MsgpackCodec()
    if subprotocol == "openenv.v2.json":
        from .json_codec import JsonCodec

        return JsonCodec()
    raise ValueError(f"no codec for {subprotocol!r}; there is one for {' and '.join(SUBPROTOCOLS)}")
