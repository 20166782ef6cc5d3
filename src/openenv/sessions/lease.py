"""How long a session may be idle: a pure rule over times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["Leased", "expired", "period"]


class Leased(Protocol):
    """What the rule looks at: `idle_since`, or None while a call is in flight or the session is not open."""

    @property
    def idle_since(self) -> float | None: ...


_L = TypeVar("_L", bound=Leased)


def expired(sessions: Iterable[_L], idle_timeout_s: float, now: float) -> list[_L]:
    """The sessions that have been idle for `idle_timeout_s` or longer. One with a call in flight never is."""
    latest = now - idle_timeout_s
    return [session for session in sessions if (idle := session.idle_since) is not None and idle <= latest]


def period(idle_timeout_s: float) -> float:
    """Seconds between two looks at the leases: an idle session is gone after 1.25 times its limit at most."""
    return idle_timeout_s / 4
