"""Functions of existing code that do more, or less, than ours: each one thin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..mcp.types import CallToolAction, ListToolsAction
from ..protocol.forms import read_action, read_form
from ..types import Action

__all__ = ["deserialize_action", "deserialize_action_with_preprocessing"]


def deserialize_action(action_data: Mapping[str, Any], action_cls: type[Action]) -> Action:
    """`read_action`; where no class but those of tool actions is asked for, `type` says which of them it makes."""
    return read_action(action_data, _class_of(action_data, action_cls))


def deserialize_action_with_preprocessing(action_data: Mapping[str, Any], action_cls: type[Action]) -> Action:
    """`read_form`; where no class but those of tool actions is asked for, `type` says which of them it makes."""
    return read_form(action_data, _class_of(action_data, action_cls))


def _class_of(values: Mapping[str, Any], cls: type[Action]) -> type[Action]:
    kind = values.get("type")
    if kind not in {"list_tools", "call_tool"}:
        return cls
    if cls not in (Action, CallToolAction, ListToolsAction):
        return cls
    return CallToolAction if kind == "call_tool" else ListToolsAction
