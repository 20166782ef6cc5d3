"""Functions about addresses and event loops, under their older names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy

if TYPE_CHECKING:
    from .._asyncio import run_async_safely
    from ..client.endpoints import convert_to_ws_url
    from ..providers.launch import hf_space_subdomain

__all__ = [
    "convert_to_ws_url",
    "hf_space_subdomain",
    "run_async_safely",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "convert_to_ws_url": "openenv.client.endpoints",
        "hf_space_subdomain": "openenv.providers.launch",
        "run_async_safely": "openenv._asyncio",
    },
)
