"""The house: its rooms, and the doors between them."""

from __future__ import annotations

__all__ = ["DOORS", "FURTHER", "START"]

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
