"""`openenv.providers` under its older name."""

from __future__ import annotations

from ..._homes import *

__all__ = [
    "GIT_URL_PREFIX",
    "RuntimeProvider",
    "UVProvider",
]

__getattr__, __dir__ = take(__name__, __all__)
