"""Projects on the Hub: push them to Spaces, copy Spaces, fetch them. (Extra `hub`.)"""

from __future__ import annotations

from .fork import Forked, fork
from .hub import Hub, Patience
from .name import SpaceName
from .pull import Pulled, pull
from .push import Published, push
from .request import SpaceRequest
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
