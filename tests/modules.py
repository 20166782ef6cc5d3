"""Modules that a test wrote, and that the next one must not find."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

__all__ = ["forget"]


def forget(folder: Path) -> None:
    """Forgets what was imported from a folder. Everything else stays: a library cannot be imported twice."""
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
        if any(place and Path(place).is_relative_to(folder) for place in places):
            del sys.modules[name]
    importlib.invalidate_caches()
