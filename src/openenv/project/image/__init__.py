"""Images of environment projects: what they are built of, by what, and where they are pushed to. (Extra `docker`.)"""

from __future__ import annotations

from .building import BuildRequest, Built, build
from .context import Context
from .dockerfile import Dockerfile
from .names import image_name, local_name
from .registry import Pushed, push_image
from .steps import BuildProgress
from .upload import PushProgress
from .wheel import from_index, own_wheel

__all__ = [
    "BuildProgress",
    "BuildRequest",
    "Built",
    "Context",
    "Dockerfile",
    "PushProgress",
    "Pushed",
    "build",
    "from_index",
    "image_name",
    "local_name",
    "own_wheel",
    "push_image",
]
