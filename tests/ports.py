"""Ports for servers that cannot be told to take any."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_port"]


@contextmanager
def held_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A TCP port that the kernel gives to nobody else until the block ends, while nobody listens there.

    A server that is told of it may listen there, as often as it likes: with SO_REUSEADDR, which servers set.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]
