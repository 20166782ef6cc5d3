"""Random numbers of our own: those of `random` belong to the program around us, which may have seeded them.

Taken from the kernel, they are no sequence that a fork would repeat in each child.
"""

from __future__ import annotations

from random import SystemRandom

__all__ = ["CHANCE"]

CHANCE = SystemRandom()
