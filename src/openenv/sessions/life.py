"""The sign of life of a connection, which keeps its sessions from being idle."""

from __future__ import annotations

import time

__all__ = ["Life"]


class Life:
    """When something was last heard of a client; its sessions share it.

    Attributes:
        heard_at: Monotonic seconds.
    """

    __slots__ = ("heard_at",)

    def __init__(self) -> None:
        self.heard_at = time.monotonic()
