"""What a server does otherwise for environments that have tools; found out once, when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..execution import class_of
from ..mcp.actions import GENERAL, with_tools
from ..mcp.environment import MCPEnvironment
from ..mcp.mode import InMode

__all__ = ["action_type_of", "factory_of", "has_tools", "tell_mode"]


def has_tools(factory: Callable[[], Any]) -> bool:
    """Whether its environments may have tools, as far as that can be told without making one."""
    cls = class_of(factory)
    return cls is None or issubclass(cls, MCPEnvironment)


def action_type_of(factory: Callable[[], Any], action_cls: Any) -> Any:
    """What clients may send for a step: tool actions too, if the environment has tools.

    Of a factory that does not say what it makes, only if its action class leaves it open what an action is.
    """
    cls = class_of(factory)
    known = cls is not None and issubclass(cls, MCPEnvironment)
    return with_tools(action_cls) if known or (cls is None and action_cls in GENERAL) else action_cls


def factory_of(factory: Callable[[], Any], mode: str) -> Callable[[], Any]:
    """The factory, whose environments are told the mode if they have tools that one mode alone has."""
    return InMode(factory).of(mode) if has_tools(factory) else factory


def tell_mode(factory: Callable[[], Any], mode: str) -> None:
    """Another mode, before anything was made."""
    if isinstance(factory, InMode):
        factory.of(mode)
