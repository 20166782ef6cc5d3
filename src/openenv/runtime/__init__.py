"""Environments and their sessions: where each runs, which client gets one, and how it ends.

Names are imported on first use, so that the fork server and each session process do not load the manager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .executor import Executor
    from .manager import SessionManager
    from .profile import EnvironmentProfile, Execution
    from .session import Session, SessionState

__all__ = ["EnvironmentProfile", "Execution", "Executor", "Session", "SessionManager", "SessionState"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EnvironmentProfile": "openenv.runtime.profile",
        "Execution": "openenv.runtime.profile",
        "Executor": "openenv.runtime.executor",
        "Session": "openenv.runtime.session",
        "SessionManager": "openenv.runtime.manager",
        "SessionState": "openenv.runtime.session",
    },
)
