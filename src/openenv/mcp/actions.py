"""Actions as clients of environments with tools send them, whichever action class the server was given."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from ..protocol.report import KINDS
from ..types import Action
from .types import CallToolAction, ListToolsAction

__all__ = ["GENERAL", "with_tools"]

_LIST, _CALL, _OWN = KINDS

GENERAL = (Action, CallToolAction, ListToolsAction)
"""Action classes that name no actions of their own: a server that is given one of them takes every tool action."""


def with_tools(action_type: Any) -> Any:
    """An action type that takes `list_tools` and `call_tool` too; what else it takes stays as it was."""
    return Annotated[
        Annotated[ListToolsAction, Tag(_LIST)]
        | Annotated[CallToolAction, Tag(_CALL)]
        | Annotated[_own(action_type), Tag(_OWN)],
        Discriminator(_kind),
    ]


def _own(action_type: Any) -> Any:
    return CallToolAction if action_type in (CallToolAction, ListToolsAction) else action_type


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind == "call_tool":
        return _CALL
    return _LIST if kind == "list_tools" else _OWN
