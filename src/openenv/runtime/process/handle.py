"""The server's end of the socket to one session's process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..._sockets import send_with_descriptors
from .messages import CHUNK_BYTES, HEAD


class ProcessExit(NamedTuple):
    """How a process ended.

    Attributes:
        status: The status from `os.waitpid`; None if unknown.
        stderr: The last bytes of its stderr.
        reason: Why the server ended it; empty if the server did not.
    """

    status: int | None
    stderr: str = ""
    reason: str = ""

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None if a signal ended it."""
        return None if self.status is None or self.status & 0x7F else self.status >> 8

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        if self.status is None or not self.status & 0x7F:
            return None
        try:
            return signal.Signals(self.status & 0x7F).name
        except ValueError:
            return f"signal {self.status & 0x7F}"


class ProcessListener(Protocol):
    """Receives the frames of a process, and its end."""

    def on_frame(self, frame: bytes | bytearray) -> None:
        """Handles the contents of a frame."""

    def on_exit(self, exit_: ProcessExit) -> None:
        """The process has ended, or was never made. This is the last call."""


class ProcessHandle:
    """A process that runs, or will run as soon as the fork server has forked it: requests wait in the socket.

    Args:
        handle_id: The number of the process in messages between server and fork server.
        connection: A connected, non-blocking stream socket.
        most: Bytes of the largest accepted frame.
        end: Asks the fork server to end the process, given the grace in seconds.

    Attributes:
        is_open: Whether requests may still be sent.
    """

    __slots__ = ("_end", "_loop", "_most", "_partial", "_unsent", "connection", "id", "is_open", "listener", "reason")

    def __init__(
        self, handle_id: int, connection: socket.socket, most: int, end: Callable[[ProcessHandle, float], None]
    ):
        self.id = handle_id
        self.listener: ProcessListener | None = None
        self.reason = ""
        self.connection = connection
        self._most = most
        self._end = end
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        self._partial = bytearray()
        self._unsent = memoryview(b"")
        self._loop.add_reader(connection, self._readable)

    def send(self, frame: bytes) -> None:
        """Sends a request, at once if the socket has room, as it nearly always has."""
        if not self.is_open:
            return
        try:
            sent = self.connection.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:  # it has ended: the fork server reports that
            return
        if sent < len(frame):
            self._unsent = memoryview(frame)[sent:]
            self._loop.add_writer(self.connection, self._writable)

    def pass_on(self, descriptors: list[int]) -> None:
        """Sends copies of descriptors to a process that waits for them. Raises `OSError`."""
        send_with_descriptors(self.connection, b"\0", descriptors)

    def end(self, reason: str, grace_s: float) -> None:
        """Ends the process, and calls its listener when it is gone."""
        if not self.reason:
            self.reason = reason
        self._end(self, grace_s)

    def discard(self, grace_s: float = 0.0) -> None:
        """Ends the process without calling its listener."""
        self.listener = None
        self.end("", grace_s)

    def close(self) -> None:
        """Closes the connection. A process that waits for a request then ends."""
        if self.is_open:
            self.is_open = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self.connection)
                self._loop.remove_writer(self.connection)
            self.connection.close()
            self._unsent = memoryview(b"")
            self._partial = bytearray()

    def on_exit(self, exit_: ProcessExit) -> None:
        """The fork server reports the end of the process."""
        while self.is_open and self._readable():  # frames that it sent before
            pass
        self.close()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.on_exit(exit_._replace(reason=self.reason or exit_.reason))

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self.connection)

    def _readable(self) -> bool:
        """Reads a part of the available data; False if there is none."""
        try:
            data = self.connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            self._end(self, 0.0)
            return False
        if not self._partial and len(data) >= HEAD.size and len(data) == HEAD.size + HEAD.unpack_from(data)[0]:
            self._deliver(data[HEAD.size :])
        else:
            self._partial += data
            self._assemble()
        return True

    def _assemble(self) -> None:
        """Joins the parts of a frame."""
        have = len(self._partial)
        if have < HEAD.size:
            return
        (length,) = HEAD.unpack_from(self._partial)
        if length > self._most:
            self._break(
                f"its reply of {length} bytes is over the limit of {self._most} (process_output_mb, "
                "OPENENV_PROCESS_OUTPUT_MB)"
            )
        elif have > HEAD.size + length:
            self._break("it sent a message without a request")
        elif have == HEAD.size + length:
            frame, self._partial = self._partial, bytearray()
            self._deliver(frame[HEAD.size :])

    def _deliver(self, frame: bytes | bytearray) -> None:
        if self.listener is None:
            self._break("it sent a message without a request")
        else:
            self.listener.on_frame(frame)

    def _break(self, reason: str) -> None:
        """The process violates the protocol: reads nothing more from it."""
        self.close()
        self.end(reason, 0.0)
