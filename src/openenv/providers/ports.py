"""A port that is free, for those who cannot leave the choice to the kernel."""

from __future__ import annotations

import socket
from collections import deque

__all__ = ["free_port", "is_free"]

# Ports that were given out lately, and may not be in use yet.
_given: deque[int] = deque(maxlen=256)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on now; somebody may before it is used, so prefer port 0 where it will do."""
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as finder:
            finder.bind((host, 0))
            port: int = finder.getsockname()[1]
            # While it is bound no other thread can be looking at the same one.
            if port not in _given:
                _given.append(port)
                return port


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nobody listens on a TCP port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as finder:
        finder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ended connections do not count
        try:
            finder.bind((host, port))
        except OSError:
            return False
        return True
