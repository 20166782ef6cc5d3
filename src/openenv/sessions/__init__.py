"""Many environments: who gets one, for how long, and what becomes of it."""

from .admission import Counts, Decision, Limits, decide
from .manager import SessionManager
from .session import Lost, Opened, Session, SessionState

__all__ = [
    "Counts",
    "Decision",
    "Limits",
    "Lost",
    "Opened",
    "Session",
    "SessionManager",
    "SessionState",
    "decide",
]
