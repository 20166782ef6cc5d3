"""A second client, made from docs/protocol.md alone: it shows that the page suffices.

Nothing here may come from `openenv`: no import, and no knowledge that the page does not give.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

__all__ = ["CODECS", "Array", "Failed", "Json", "Lasting", "MiniClient", "MiniClientV1", "Msgpack"]

# Element types and how many bytes one takes; see "In msgpack".
ELEMENTS = {"|b1": 1, "|i1": 1, "|u1": 1, "<i2": 2, "<u2": 2, "<f2": 2, "<i4": 4, "<u4": 4, "<f4": 4}
ELEMENTS |= {"<i8": 8, "<u8": 8, "<f8": 8, "<c8": 8, "<c16": 16}
ARRAY = 1  # the extension type
MAX_DIMENSIONS = 32
TAGS = {"$bytes", "$array", "$object"}


@dataclass(frozen=True)
class Array:
    """An array of numbers: its elements are little-endian, the last index changes fastest."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENTS:
            raise ValueError(f"element type {self.dtype!r}")
        if len(self.shape) > MAX_DIMENSIONS:
            raise ValueError(f"{len(self.shape)} dimensions")
        if len(self.data) != math.prod(self.shape) * ELEMENTS[self.dtype]:
            raise ValueError(f"{len(self.data)} bytes do not make {self.shape} of {self.dtype}")

    def packed(self) -> bytes:
        """The data of the msgpack extension."""
        name = self.dtype.encode("ascii")
        head = struct.pack(f"<B{len(name)}sB", len(name), name, len(self.shape))
        return head + struct.pack(f"<{len(self.shape)}Q", *self.shape) + self.data

    @classmethod
    def unpacked(cls, data: bytes) -> Array:
        """The array in the data of a msgpack extension."""
        end = 1 + data[0]
        dimensions = data[end]
        shape = struct.unpack_from(f"<{dimensions}Q", data, end + 1)
        return cls(data[1:end].decode("ascii"), shape, data[end + 1 + 8 * dimensions :])


class Json:
    """v2 in text frames."""

    subprotocol = "openenv.v2.json"
    frame = str

    def encode(self, value: Any) -> str:
        return json.dumps(self._tagged(value))

    def decode(self, text: str) -> Any:
        return self._untagged(json.loads(text))

    def _tagged(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, Array):
            data = base64.b64encode(value.data).decode()
            return {"$array": {"dtype": value.dtype, "shape": list(value.shape), "data": data}}
        if isinstance(value, dict):
            plain = {key: self._tagged(item) for key, item in value.items()}
            return {"$object": plain} if len(plain) == 1 and plain.keys() <= TAGS else plain
        return [self._tagged(item) for item in value] if isinstance(value, list | tuple) else value

    def _untagged(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._untagged(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((key, content),) = value.items()
            if key == "$bytes":
                return base64.b64decode(content, validate=True)
            if key == "$array":
                data = base64.b64decode(content["data"], validate=True)
                return Array(content["dtype"], tuple(content["shape"]), data)
            if key == "$object":
                value = content  # a plain map, whatever its one key may be
        return {key: self._untagged(item) for key, item in value.items()}


class Msgpack:
    """v2 in binary frames."""

    subprotocol = "openenv.v2.msgpack"
    frame = bytes

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(self._extended(value))

    def decode(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data, ext_hook=self._narrowed)

    def _extended(self, value: Any) -> Any:
        if isinstance(value, Array):
            return msgspec.msgpack.Ext(ARRAY, value.packed())
        if isinstance(value, dict):
            return {key: self._extended(item) for key, item in value.items()}
        return [self._extended(item) for item in value] if isinstance(value, list | tuple) else value

    @staticmethod
    def _narrowed(code: int, data: memoryview) -> Array:
        if code == ARRAY:
            return Array.unpacked(bytes(data))
        raise ValueError(f"extension type {code}")


CODECS = {"json": Json, "msgpack": Msgpack}


class Failed(Exception):
    """The server answered with an error.

    Attributes:
        fault: The error as it came.
        name: What to decide by.
    """

    def __init__(self, fault: dict[str, Any]):
        super().__init__(f"{fault['error']}: {fault['message']}")
        self.fault = fault
        self.name: str = fault["error"]


class MiniClient:
    """A connection that speaks v2. It has one reader: whoever asks for a reply.

    Attributes:
        socket: The WebSocket.
        codec: How frames are written.
        hello: The first frame of the server.
        events: What came unasked later.
    """

    def __init__(self, url: str, codec: Json | Msgpack):
        self.codec = codec
        self.hello: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self._url = url
        self._last_id = 0
        self._kept: deque[dict[str, Any]] = deque()

    async def __aenter__(self) -> MiniClient:
        self.socket: ClientConnection = await connect(self._url, subprotocols=[self.codec.subprotocol], max_size=None)
        assert self.socket.subprotocol == self.codec.subprotocol
        self.hello = await self.frame()
        assert self.hello["event"] == "hello"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.close()

    async def frame(self) -> dict[str, Any]:
        """The next frame, whatever it is."""
        received = await self.socket.recv()
        assert isinstance(received, self.codec.frame)
        return self.codec.decode(received)

    async def send(self, op: str, **fields: Any) -> int:
        """Sends a request and returns its id."""
        self._last_id += 1
        await self.socket.send(self.codec.encode({"id": self._last_id, "op": op, **fields}))
        return self._last_id

    async def event(self, name: str) -> dict[str, Any]:
        """The first event of a name, if need be one that is still to come."""
        while True:
            for event in self.events:
                if event["event"] == name:
                    return event
            await self._take()

    async def next_reply(self, number: int | None) -> dict[str, Any]:
        """The next reply under an id, the replies under others are kept for those who ask for them."""
        while True:
            for reply in self._kept:
                if reply["id"] == number:
                    self._kept.remove(reply)
                    return reply
            await self._take()

    async def _take(self) -> None:
        frame = await self.frame()
        if "event" in frame:
            self.events.append(frame)
        else:
            self._kept.append(frame)

    async def replies(self, count: int) -> list[dict[str, Any]]:
        """The next replies, in the order in which they come."""
        while len(self._kept) < count:
            await self._take()
        return [self._kept.popleft() for _ in range(count)]

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """A request and its one reply.

        Raises:
            Failed: The reply was an error.
        """
        reply = await self.next_reply(await self.send(op, **fields))
        if "error" in reply:
            raise Failed(reply["error"])
        assert reply["ok"] is True
        return reply

    async def batch(self, calls: list[dict[str, Any]], **fields: Any) -> list[list[dict[str, Any]]]:
        """The results of a batch, a list for each frame.

        Raises:
            Failed: The batch was refused.
        """
        number = await self.send("batch", calls=calls, **fields)
        frames = []
        while True:
            reply = await self.next_reply(number)
            if "error" in reply:
                raise Failed(reply["error"])
            frames.append(reply["results"])
            if not reply["more"]:
                return frames


class Lasting:
    """A session that outlives its connections: it attaches on a new one and repeats what had no reply.

    Attributes:
        id: Chosen here, as the token is, so that it can attach though the reply to `open` was lost.
        seq: Number of the last call.
        client: The connection of now.
        attached: The last answer to `attach`; None before the first.
    """

    def __init__(self, url: str, codec: Json | Msgpack, session: str, token: str):
        self.id = session
        self.seq = 0
        self.client = MiniClient(url, codec)
        self.attached: dict[str, Any] | None = None
        self._url, self._codec, self._token = url, codec, token
        self._answered = False

    async def __aenter__(self) -> Lasting:
        await self.client.__aenter__()
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.call("close", session=self.id)
        await self.client.__aexit__()

    async def tell(self, op: str, **fields: Any) -> int:
        """Sends the next call; there must be none without a reply."""
        self.seq += 1
        return await self.client.send(op, session=self.id, seq=self.seq, **fields)

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """The reply to a call, over as many connections as that takes.

        Raises:
            Failed: The reply was an error, or the session is gone.
        """
        number = await self.tell(op, **fields)
        while True:
            try:
                return self._good(await self.client.next_reply(number))
            except ConnectionClosed:
                await self.come_back()
                number = await self.client.send(op, session=self.id, seq=self.seq, **fields)

    def cut(self) -> None:
        """Ends the connection as a broken road does: without a word."""
        self.client.socket.transport.abort()

    async def come_back(self) -> None:
        """Connects to the same worker and attaches.

        Raises:
            Failed: The session is gone.
        """
        worker = self.client.hello["worker"]
        url = self._url if worker is None else f"{self._url}?worker={worker}"
        self._answered |= any("ok" in reply for reply in self.client._kept)
        await self.client.__aexit__()
        self.client = await MiniClient(url, self._codec).__aenter__()
        try:
            self.attached = await self.client.call("attach", session=self.id, token=self._token)
        except Failed as failed:
            if failed.name != "UnknownSession" or self._answered:
                raise
            await self._open()  # the first `open` never arrived

    async def _open(self) -> None:
        await self.client.send("open", session=self.id, token=self._token)

    def _good(self, reply: dict[str, Any]) -> dict[str, Any]:
        self._answered = True
        if "error" in reply:
            raise Failed(reply["error"])
        return reply


class MiniClientV1:
    """A connection that speaks v1: a session, one request at a time."""

    def __init__(self, url: str):
        self._url = url

    async def __aenter__(self) -> MiniClientV1:
        self.socket: ClientConnection = await connect(self._url, max_size=None)
        assert self.socket.subprotocol is None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.close()

    async def frame(self) -> dict[str, Any]:
        return json.loads(await self.socket.recv())

    async def call(self, kind: str, data: Any = None) -> Any:
        """The `data` of the answer.

        Raises:
            Failed: The answer was an error.
        """
        await self.socket.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
        answer = await self.frame()
        if answer["type"] == "error":
            raise Failed({"error": None, **answer["data"]})
        assert answer["type"] == {"reset": "observation", "step": "observation"}.get(kind, kind)
        return answer["data"]
