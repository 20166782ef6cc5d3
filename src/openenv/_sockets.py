"""Sockets between processes of this machine: pairs, and open sockets that one process passes to another."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from array import array
from collections.abc import Callable, Iterable

_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_INT_BYTES = array("i").itemsize


def can_pass_sockets() -> bool:
    """Whether processes can pass open sockets to one another, in messages that stay apart: on Linux."""
    needed = ((socket, "send_fds"), (socket, "SOCK_SEQPACKET"), (socket, "AF_UNIX"), (os, "memfd_create"))
    return all(hasattr(module, name) for module, name in needed)


def message_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages apart. Raises `OSError` unless `can_pass_sockets`."""
    if sys.platform != "linux":
        raise _missing("SOCK_SEQPACKET")
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def unix_socket() -> socket.socket:
    """A socket for an address in the file system. Raises `OSError` on Windows, where Python has none."""
    if sys.platform == "win32":
        raise _missing("AF_UNIX")
    return socket.socket(socket.AF_UNIX)


def send_with_descriptors(end: socket.socket, data: bytes, descriptors: Iterable[int]) -> None:
    """Sends a message with copies of descriptors. Raises `OSError` if it cannot, and unless `can_pass_sockets`."""
    if sys.platform == "win32":
        raise _missing("send_fds")
    socket.send_fds(end, [data], list(descriptors))


def receive_with_descriptors(end: socket.socket, most_bytes: int, most: int) -> tuple[bytes, list[int]]:
    """Receives a message and its descriptors, which the caller owns; processes that it starts do not inherit them.

    Args:
        end: The socket.
        most_bytes: Bytes of the longest message.
        most: Most descriptors of a message.

    Raises:
        OSError: The socket failed, or the platform passes none.
    """
    if sys.platform == "win32":
        raise _missing("recv_fds")
    # Not `socket.recv_fds`, which ignores its flags.
    data, ancillary, _, _ = end.recvmsg(most_bytes, socket.CMSG_SPACE(most * _INT_BYTES), _CLOSE_ON_EXEC)
    found = array("i")
    for _, _, descriptors in ancillary:
        found.frombytes(descriptors[: len(descriptors) // _INT_BYTES * _INT_BYTES])
    return data, found.tolist()


def inheritable(end: socket.socket) -> tuple[int, ...]:
    """The descriptors that a process must inherit for the ticket of a socket; Windows needs none."""
    return () if sys.platform == "win32" else (end.fileno(),)


def ticket_of(end: socket.socket, pid: int) -> bytes:
    """What a child process needs to open a socket of this one, by `from_ticket`. It works once.

    Args:
        end: The socket; the process has inherited its `inheritable` descriptors.
        pid: The process.
    """
    if sys.platform == "win32":
        return end.share(pid)
    return b"%d" % end.fileno()


def from_ticket(ticket: bytes) -> socket.socket:
    """The socket of a ticket; processes that this one starts do not inherit it."""
    if sys.platform == "win32":
        return socket.fromshare(ticket)
    end = socket.socket(fileno=int(ticket))
    end.set_inheritable(False)
    return end


def watching_loop(
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A factory of event loops that watch sockets (`add_reader`): the given one, but not Windows' default."""
    return asyncio.SelectorEventLoop if sys.platform == "win32" else factory


async def open_streams(end: socket.socket, limit: int = 65_536) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams of one end of `socket.socketpair()`.

    Args:
        end: The connected socket.
        limit: Bytes of the longest line.
    """
    if sys.platform == "win32":  # its pairs are TCP connections
        return await asyncio.open_connection(sock=end, limit=limit)
    return await asyncio.open_unix_connection(sock=end, limit=limit)


def _missing(what: str) -> OSError:
    return OSError(f"this system has no {what}: openenv needs Linux for this")
