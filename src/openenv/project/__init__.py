"""An environment project on disk."""

from __future__ import annotations

from .imports import attribute_of, import_module
from .manifest import Manifest

__all__ = ["Manifest", "attribute_of", "import_module"]
