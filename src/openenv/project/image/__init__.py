"""Build and push images of environment projects. (Extra `docker`.)"""

from ...providers.dockerfile import Dockerfile
from .building import BuildRequest, Built, Context, build
from .progress import BuildProgress, PushProgress
from .registry import Pushed, image_name, local_name, push_image
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
