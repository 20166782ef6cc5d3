"""Seconds that processes give one another."""

from __future__ import annotations

__all__ = ["END_S", "EXHAUSTED_S", "RUNNING_S", "SETTLE_S"]

# Seconds that running calls have to finish when sessions are given no time.
RUNNING_S = 2.0
# Seconds for connections and environments to close after that; then the process ends whatever they do.
END_S = 6.0
# A worker that is replaced got its last connections a moment ago: this long they may still open sessions.
SETTLE_S = 2.0
# Without connections after there was no room for another file.
EXHAUSTED_S = 0.5
