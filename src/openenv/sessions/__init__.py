"""Many environments: who gets one, for how long, and what becomes of it."""

from .admission import Counts, Decision, Limits, decide
from .manager import SessionManager
from .session import Lost, Opened, Origin, Session, SessionState
from .slots import LocalSlots, Room, Slots

__all__ = [
    "Counts",
    "Decision",
    "Limits",
    "LocalSlots",
    "Lost",
    "Opened",
    "Origin",
    "Room",
    "Session",
    "SessionManager",
    "SessionState",
    "Slots",
    "decide",
]
