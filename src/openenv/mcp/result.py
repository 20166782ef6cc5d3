"""What comes of a tool call, whichever library the tool was written with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from .types import ToolError, ToolErrorType

MOST_NAMES = 50
INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""What ends a call from outside, and is no answer of its tool."""


@dataclass(slots=True)
class ToolResult:
    """What a tool gave.

    Attributes:
        content: Blocks of text, images and so on, as they are shown to a model.
        structured_content: The value as a JSON object; None if the tool returns none.
        meta: Facts beside it.
        data: The value that the tool returned, as JSON has it; None if it returned nothing but content.
        is_error: False: a tool that failed has a `ToolError` and no result.
    """

    content: list[Any]
    structured_content: dict[str, Any] | None
    meta: dict[str, Any] | None
    data: Any
    is_error: bool = False


class ToolFault(Exception):
    """Why a tool gave nothing.

    Attributes:
        error: The same as data.
    """

    def __init__(self, error_type: ToolErrorType, message: str):
        super().__init__(message)
        self.error = ToolError(error_type=error_type, message=message)


def not_found_error(name: str, names: list[str]) -> ToolFault:
    """There is no such tool; names those there are."""
    there = ", ".join(names[:MOST_NAMES]) or "none"
    return ToolFault(ToolErrorType.TOOL_NOT_FOUND, f"Unknown tool: {name!r}; there are: {there}")


def argument_error(name: str, error: BaseException, schema: Any = None) -> ToolFault:
    """It does not take these arguments; says which of them, and what it takes."""
    faults = str(error)
    if isinstance(error, ValidationError):
        places = ((".".join(map(str, each["loc"])), each["msg"]) for each in error.errors(include_url=False))
        faults = "; ".join(f"{place or 'arguments'}: {message}" for place, message in places)
    takes = ""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict):
        required = schema.get("required") or ()
        listed = [each if each in required else f"{each} (optional)" for each in properties]
        takes = f"; it takes {', '.join(listed) or 'none'}"
    return ToolFault(ToolErrorType.INVALID_ARGS, f"wrong arguments for tool {name!r}: {faults}{takes}")


def execution_error(name: str, error: BaseException) -> ToolFault:
    """The tool raised. The text is FastMCP's, which models have been trained with; an error without one is named."""
    said = message_of(error) or type(error).__name__
    fault = ToolFault(ToolErrorType.EXECUTION_ERROR, f"Error calling tool {name!r}: {said}")
    fault.__cause__ = error
    return fault


def message_of(error: BaseException) -> str:
    """The text of an error; nothing if the error itself fails to say it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - foreign code again
        return ""


def timeout_error(name: str, timeout_s: float) -> ToolFault:
    """It gave no answer in its time."""
    still = "it may still be at it; give it more time with timeout_s, or tool_timeout_s of the environment's class"
    return ToolFault(ToolErrorType.TIMEOUT, f"Tool {name!r} timed out after {timeout_s:g} seconds: {still}")


def wire_of(result: ToolResult, dump: Callable[[Any], Any], standard: bool) -> dict[str, Any]:
    """A result as `tools/call` answers it.

    Args:
        result: What the tool gave.
        dump: Makes JSON of one block of content.
        standard: As the MCP specification has it, and not also as clients of `openenv` read it.
    """
    wire: dict[str, Any] = {"content": [dump(block) for block in result.content]}
    if result.structured_content is not None:
        wire["structuredContent"] = result.structured_content
    wire["isError"] = False
    if not standard:
        wire |= {
            "structured_content": result.structured_content,
            "meta": result.meta,
            "data": result.data,
            "is_error": False,
        }
    elif result.meta:
        wire["_meta"] = result.meta
    return wire
