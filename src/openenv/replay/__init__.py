"""Recorded episodes, played again against an environment and compared."""

from __future__ import annotations

from .player import Pair, Player, Rules
from .replaying import replay
from .tally import Tally
from .venue import Venue, app_venue, server_venue
from .verdict import Divergence, Outcome, Verdict

__all__ = [
    "Divergence",
    "Outcome",
    "Pair",
    "Player",
    "Rules",
    "Tally",
    "Venue",
    "Verdict",
    "app_venue",
    "replay",
    "server_venue",
]
