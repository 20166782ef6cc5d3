"""Functions about addresses and event loops, under their older names."""

from __future__ import annotations

from ._homes import *

__all__ = [
    "convert_to_ws_url",
    "hf_space_subdomain",
    "run_async_safely",
]

__getattr__, __dir__ = take(__name__, __all__)
