"""Functions about addresses and event loops, under their older names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from ..background import run_async_safely
    from ..client.url import convert_to_ws_url
    from ..launch.client import hf_space_subdomain

__all__ = [
    "convert_to_ws_url",
    "hf_space_subdomain",
    "run_async_safely",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "convert_to_ws_url": "openenv.client.url",
        "hf_space_subdomain": "openenv.launch.client",
        "run_async_safely": "openenv.background",
    },
)
