"""An environment project on disk."""

from __future__ import annotations

from .imports import attribute_of, import_module
from .manifest import Manifest
from .project import Project

__all__ = ["Manifest", "Project", "attribute_of", "import_module"]
