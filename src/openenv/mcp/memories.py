"""What FastMCP remembers of the functions of tools, and is made to forget when their environment closes.

It keeps them without end, and each keeps the environment that it uses: a server would hold on to every environment
that it ever had.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["forget"]

# Dictionaries by function, which only grow.
_ENDLESS = (
    ("uncalled_for.introspection", "_signature_cache"),
    ("uncalled_for.introspection", "_parameter_cache"),
    ("uncalled_for.annotations", "_metadata_cache"),
    ("uncalled_for.annotations", "_annotation_cache"),
    ("uncalled_for.references", "_reference_cache"),
)
# Of the last 5,000 functions each; nothing can be taken out by itself. What is lost here is made again when needed.
_LATEST = (
    ("fastmcp.utilities.types", "get_cached_typeadapter"),
    ("fastmcp.server.dependencies", "without_injected_parameters"),
    ("fastmcp.server.sessions", "session_id_parameter_names"),
    ("fastmcp.tools.function_tool", "_wrap_body_errors"),
    ("uncalled_for.resolution", "without_dependencies"),
)


def forget(functions: Iterable[Callable[..., Any]]) -> None:
    """Has nothing remembered of these functions. Versions that remember elsewhere are left as they are."""
    held = [function for function in functions if _holds(function)]
    for module, name in _ENDLESS:
        memory = getattr(sys.modules.get(module), name, None)
        if isinstance(memory, dict):
            for function in held:
                memory.pop(function, None)
    for module, name in _LATEST:
        clear = getattr(getattr(sys.modules.get(module), name, None), "cache_clear", None)
        if clear is not None:
            clear()


def _holds(function: Callable[..., Any]) -> bool:
    """Whether it keeps anything. Another thread may be looking up one that does not, for another environment."""
    return not inspect.isfunction(function) or function.__closure__ is not None
