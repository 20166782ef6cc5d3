"""The pipe between the parent and a worker: messages with attached sockets, and time limits of the two."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Self

from ..._sockets import message_pair, receive_with_descriptors, send_with_descriptors

# Seconds that running calls have to finish after the time for sessions to end.
RUNNING_S = 2.0
# Seconds for connections and environments to close after that. Then the process exits in any case.
END_S = 6.0
# Seconds in which the last connections of a replaced worker may still open sessions.
SETTLE_S = 2.0
# The same for a worker without a parent, and when its process ends in any case.
ORPHAN_RUNNING_S = 0.7
ORPHAN_S = 1.5
# Near the limit of sessions, a connection has this many seconds to open one before the next connection may.
UNDECIDED_S = 2.0
# Seconds without new connections after the process could open no more files.
EXHAUSTED_S = 0.5


# Most sockets in one message. A worker takes this many before it serves them. The kernel's limit is 253.
MOST_SOCKETS = 32
# Largest message: a forwarded request head.
MOST_BYTES = 65_536
# Size of the key that names a worker in a message.
KEY_BYTES = 8


class MessageKind(Enum):
    """The kind of a message: its first byte."""

    # From the parent.
    CONNECTIONS = b"c"  # the number of new connections (1 byte), and their sockets
    DRAIN = b"d"  # stop opening sessions; seconds that sessions have to end
    RETIRE = b"l"  # like DRAIN, for a replaced worker whose last connections are still opening sessions
    TELL = b"t"  # another worker asks for the list of sessions; one socket, to answer on
    # The number of workers that answer (2 bytes), the keys of some of them (8 bytes each), their sockets.
    ANSWER_SOCKETS = b"o"
    # From a worker.
    ASK = b"a"  # request the sessions of all other workers
    READY = b"r"  # the worker serves; JSON: facts about its environment
    FAILED = b"e"  # the worker cannot start; the reason
    # Both ways.
    ROUTED = b"h"  # key of the requested worker (8 bytes), bytes already read from the connection; one socket
    FREE = b"f"  # a slot came free; from a worker: rows of those that wait for one (2 bytes each)
    END = b""  # the other end is closed


class PipeMessage(NamedTuple):
    kind: MessageKind
    payload: bytes
    sockets: list[int]


def close_all(descriptors: Iterable[int]) -> None:
    """Closes sockets."""
    for descriptor in descriptors:
        os.close(descriptor)


class Pipe:
    """One end of the pipe between the parent and a worker. Never waits."""

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._end = end
        self._outbox: deque[tuple[bytes, list[int]]] = deque()

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        here, there = message_pair()
        return cls(here), cls(there)

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def full(self) -> bool:
        """Whether messages wait for the other end to read. If so, call `flush` when the pipe is writable."""
        return bool(self._outbox)

    def send(self, kind: MessageKind, payload: bytes = b"", sockets: Iterable[int] = ()) -> bool:
        """Sends a message now. False: the pipe is full, or the other end is closed. The caller keeps the sockets."""
        return not self._outbox and self._send(kind.value + payload, list(sockets))

    def post(self, kind: MessageKind, payload: bytes = b"", sockets: Iterable[int] = ()) -> None:
        """Sends a message now or later. The pipe owns the sockets from now on."""
        self._outbox.append((kind.value + payload, list(sockets)))
        self.flush()

    def flush(self) -> None:
        """Sends waiting messages until the pipe is full."""
        while self._outbox and self._send(*self._outbox[0]):
            close_all(self._outbox.popleft()[1])

    def receive(self) -> PipeMessage | None:
        """The next message; None if none has arrived. The caller owns its sockets."""
        try:
            data, sockets = receive_with_descriptors(self._end, MOST_BYTES, MOST_SOCKETS)
        except BlockingIOError:
            return None
        except ConnectionError:
            return PipeMessage(MessageKind.END, b"", [])
        return PipeMessage(MessageKind(data[:1]), data[1:], sockets)

    def close(self) -> None:
        """Closes this end, and the sockets that were not sent."""
        for _, sockets in self._outbox:
            close_all(sockets)
        self._outbox.clear()
        self._end.close()

    def _send(self, data: bytes, sockets: list[int]) -> bool:
        try:
            if sockets:
                send_with_descriptors(self._end, data, sockets)
            else:
                self._end.send(data)
        except OSError:
            # The pipe is full; or too many sockets are in flight (ETOOMANYREFS) until the other side reads.
            return False
        return True
