"""Connecting, in the newest version of the protocol that both sides speak."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from ..protocol.codec import codec_of
from .conversation import Conversation
from .link import Link
from .transport import Connect
from .way import ANY, Way

__all__ = ["Dial", "dial"]


class Dial(Protocol):
    """Opens a connection to the server of a client."""

    def __call__(self, way: Way = ANY) -> Awaitable[Link | Conversation]:
        """Connects.

        Args:
            way: Where it shall lead to.
        """


async def dial(connect: Connect, max_message_bytes: int) -> Link | Conversation:
    """Opens a connection.

    Args:
        connect: Opens it; what it raises is raised.
        max_message_bytes: Largest message that is sent.

    Returns:
        A link for v2, a conversation for v1.
    """
    made: list[Link | Conversation] = []

    def receiver(subprotocol: str | None) -> Link | Conversation:
        end = (
            Conversation(max_message_bytes) if subprotocol is None else Link(codec_of(subprotocol), max_message_bytes)
        )
        made.append(end)
        return end

    transport = await connect(receiver)
    (end,) = made
    end.begin(transport)
    return end
