"""Publish projects as Spaces of the Hub, fork Spaces, download them. (Extra `hub`.)"""

from __future__ import annotations

from .client import Hub, Patience
from .pull import Pulled, pull
from .push import Published, push
from .request import SpaceName, SpaceRequest
from .space import Forked, fork
from .stage import Stage

__all__ = [
    "Forked",
    "Hub",
    "Patience",
    "Published",
    "Pulled",
    "SpaceName",
    "SpaceRequest",
    "Stage",
    "fork",
    "pull",
    "push",
]
