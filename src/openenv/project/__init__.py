"""An environment project on disk."""

from typing import TYPE_CHECKING

from .._imports import lazy as _lazy

if TYPE_CHECKING:
    from .manifest import Manifest, Project
    from .target import attribute_of, import_module

__all__ = ["Manifest", "Project", "attribute_of", "import_module"]

_HOMES = {
    "Manifest": "openenv.project.manifest",
    "Project": "openenv.project.manifest",
    "attribute_of": "openenv.project.target",
    "import_module": "openenv.project.target",
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
