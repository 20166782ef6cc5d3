"""Seconds that processes give one another."""

from __future__ import annotations

__all__ = ["END_S", "EXHAUSTED_S", "ORPHAN_RUNNING_S", "ORPHAN_S", "RUNNING_S", "SETTLE_S", "UNDECIDED_S"]

# Seconds that running calls have to finish when the time of their sessions is over.
RUNNING_S = 2.0
# Seconds for connections and environments to close after that; then the process ends whatever they do.
END_S = 6.0
# A worker that is replaced got its last connections a moment ago: this long they may still open sessions.
SETTLE_S = 2.0
# The same for a worker whose parent is gone, and when its process ends whatever it does.
ORPHAN_RUNNING_S = 0.7
ORPHAN_S = 1.5
# Near the limit of sessions, a connection is given this long to open one before the next one may.
UNDECIDED_S = 2.0
# Without connections after there was no room for another file.
EXHAUSTED_S = 0.5
