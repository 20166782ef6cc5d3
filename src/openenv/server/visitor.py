"""Who is at the other end of a connection, and what their key allows."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ..tracing import Trail

__all__ = ["ANYBODY", "Scope", "Visitor"]


class Scope(StrEnum):
    """What a key allows."""

    CONTROL = "control"
    """Everything."""
    AGENT = "agent"
    """Tools, and nothing that ends or restarts an episode."""
    VIEW = "view"
    """Reading what the server and its environment are."""


class Visitor(NamedTuple):
    """A client whose key was checked.

    Attributes:
        scope: What it may do.
        holder: Number of its key, from 1; 0 where no key is asked for.
        peer: Its address, for people to read: `127.0.0.1:41234`.
        traceparent: The trace that its requests are part of, in its own words (W3C trace context); empty: none.
        trail: Where its requests are traced; None: nowhere.
        session: The session that its URL asks to be attached to; None: it wants one of its own.
        token: What it shows for that, beside its key.
        worker_ended: Its URL names a worker process that has ended.
    """

    scope: Scope
    holder: int
    peer: str
    traceparent: str = ""
    trail: Trail | None = None
    session: str | None = None
    token: str | None = None
    worker_ended: bool = False


ANYBODY = Visitor(Scope.CONTROL, 0, "")
"""A client of a server that asks for no key."""
