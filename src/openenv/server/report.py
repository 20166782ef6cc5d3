"""What `GET /sessions` says of the sessions of one process."""

from __future__ import annotations

import time
from typing import Any

from ..sessions import SessionManager

__all__ = ["sessions_here"]


def sessions_here(manager: SessionManager, worker: str | None) -> list[dict[str, Any]]:
    """A line for each session: what it is doing, for how long, and for whom.

    Args:
        manager: Whose sessions.
        worker: What the process is called.

    Returns:
        For each its `id`, `state`, `age_s`, `idle_s` (None unless it waits for a call), `steps`, `worker` and `peer`.
    """
    now = time.monotonic()
    return [
        {
            "id": session.id,
            "state": session.state.value,
            "age_s": round(now - session.created_at, 3),
            "idle_s": None if session.idle_since is None else round(now - session.idle_since, 3),
            "steps": session.steps,
            "worker": worker,
            "peer": session.peer,
        }
        for session in manager.sessions
    ]
