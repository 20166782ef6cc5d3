"""All checks there are."""

from __future__ import annotations

from dataclasses import replace

from ...testing.environments import LOAD, RUNTIME
from ...testing.probe import Probe
from . import files, served
from .finding import Level

__all__ = ["OF_CODE", "OF_FILES", "level_of", "ours", "up_to"]

_SERVED = tuple(replace(probe, needs=("static.import",)) if not probe.needs else probe for probe in (*RUNTIME, *LOAD))
OF_FILES: tuple[Probe, ...] = files.PROBES
"""What looks at files alone."""
OF_CODE: tuple[Probe, ...] = (*served.PROBES, *_SERVED)
"""What runs the environment's code."""

_ORDER = (Level.STATIC, Level.RUNTIME, Level.LOAD)


def level_of(probe: Probe) -> Level:
    """The level of a check, which its id begins with."""
    return Level(probe.id.partition(".")[0])


def ours(name: str) -> Probe:
    """The check of an id."""
    return next(probe for probe in (*OF_FILES, *OF_CODE) if probe.id == name)


def up_to(level: Level) -> list[Probe]:
    """The checks that run code, of a level and those before it."""
    return [probe for probe in OF_CODE if _ORDER.index(level_of(probe)) <= _ORDER.index(level)]
