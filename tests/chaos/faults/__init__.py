"""The faults, in the order of the table."""

from __future__ import annotations

# The order of these imports is that of the table.
from . import network, workers, hung, isolation, capacity, abuse, fuzz, keys, stopping, rollouts, capture, soak  # isort: skip
from ..trial import FAULTS

__all__ = [
    "FAULTS",
    "abuse",
    "capacity",
    "capture",
    "fuzz",
    "hung",
    "isolation",
    "keys",
    "network",
    "rollouts",
    "soak",
    "stopping",
    "workers",
]
