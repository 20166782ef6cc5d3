"""What a call is told when its session is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import CapacityError, FactoryFailed, OpenEnvError, SessionLost, StepTimeout
from ..protocol.client_v2 import error_of
from .link import Link

__all__ = ["again", "forgotten", "lost", "overdue", "told"]


def lost(error: OpenEnvError) -> SessionLost:
    """The end of a session that was there, for whichever reason."""
    gone = SessionLost(f"the session is gone, call reset() for a new one: {error.message}")
    gone.__cause__ = error
    return gone


def forgotten(error: OpenEnvError) -> SessionLost:
    """The end of a session that its server does not have any more when its client comes back."""
    gone = SessionLost(
        "the session is gone, call reset() for a new one: its connection was lost, and the server that is there now "
        f"does not let it come back (another worker process, or away for too long?): {error.message}"
    )
    gone.__cause__ = error
    return gone


def again(error: OpenEnvError, served: bool) -> OpenEnvError:
    """What a call gets that is made after its session ended.

    Args:
        error: Why it ended.
        served: Whether there was a session; one that was refused is refused again.
    """
    refused = isinstance(error, (CapacityError, FactoryFailed)) and not served
    return error if refused else lost(error)


def told(fields: Mapping[str, Any]) -> OpenEnvError:
    """Why a session ended, from the server's event `session_lost`."""
    facts = fields.get("error")
    return error_of(facts) if isinstance(facts, Mapping) else SessionLost(str(fields.get("reason", "")))


def overdue(late: str, link: Link | None) -> StepTimeout:
    """A call that was not answered in time; the road is to blame if there is none at the moment.

    Args:
        late: What was not answered, and within what.
        link: The connection of its session.
    """
    if link is None or link.error is None:
        return StepTimeout(f"{late}; the environment may still be at it")
    error = StepTimeout(
        f"{late}: the connection is lost ({link.error.message}), and its session goes on with the next"
    )
    error.blame = "infrastructure"
    return error
