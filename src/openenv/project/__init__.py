"""An environment project on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy as _lazy

if TYPE_CHECKING:
    from .imports import attribute_of, import_module
    from .manifest import Manifest
    from .project import Project

__all__ = ["Manifest", "Project", "attribute_of", "import_module"]

_HOMES = {
    "Manifest": "openenv.project.manifest",
    "Project": "openenv.project.project",
    "attribute_of": "openenv.project.imports",
    "import_module": "openenv.project.imports",
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
