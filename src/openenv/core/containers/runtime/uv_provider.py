"""`openenv.providers` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._imports import lazy

if TYPE_CHECKING:
    from ....providers import RuntimeProvider, UVProvider
    from ....providers.uv import GIT_URL_PREFIX

__all__ = [
    "GIT_URL_PREFIX",
    "RuntimeProvider",
    "UVProvider",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "GIT_URL_PREFIX": "openenv.providers.uv",
        "RuntimeProvider": "openenv.providers",
        "UVProvider": "openenv.providers",
    },
)
