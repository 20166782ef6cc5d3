"""The house: its rooms, and the doors between them."""

from __future__ import annotations

__all__ = ["DOORS", "FURTHER", "START", "next_room"]

DOORS = {
    "hall": ["kitchen", "library", "garden"],
    "kitchen": ["hall", "cellar"],
    "library": ["hall", "attic"],
    "garden": ["hall"],
    "cellar": ["kitchen"],
    "attic": ["library"],
}
START = "hall"
FURTHER = [room for room in DOORS if room != START]
"""The rooms that may contain things."""


def next_room(room: str, wanted: str, came_from: str = "") -> str | None:
    """The neighbour of a room on the way to another one. None if there is no way; the house has no circles."""
    for door in DOORS[room]:
        if door == wanted or (door != came_from and next_room(door, wanted, room) is not None):
            return door
    return None
