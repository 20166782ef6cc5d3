"""What users prove their own parts with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .providers import ProviderConformance

__all__ = ["ProviderConformance"]

_HOMES = {"ProviderConformance": "openenv.testing.providers"}

__getattr__, __dir__ = lazy(__name__, _HOMES)
