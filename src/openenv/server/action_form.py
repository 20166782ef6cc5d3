"""The fields of an action as a form shows them."""

from __future__ import annotations

from typing import Any

from ..contract import schema_of

__all__ = ["action_fields"]

_WIDGETS = {"boolean": "checkbox", "integer": "number", "number": "number"}
_LIMITS = {
    "min_value": "minimum",
    "max_value": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}


def action_fields(action_cls: Any) -> list[dict[str, Any]]:
    """What a form needs to know of each field of an action class, `metadata` left out.

    Args:
        action_cls: A model, or what else an environment takes; what has no fields gives an empty list.

    Returns:
        For each field its `name`, `type` (`text`, `number`, `checkbox`, `select`, or `tensor` for a list of
        numbers), `required`, `description`, `default_value`, `choices`, `min_value`, `max_value`, `min_length`,
        `max_length`, `pattern`, `placeholder` and `help_text`; None where the class says nothing.
    """
    schema = schema_of(action_cls) or {}
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    return [
        _field(name, _followed(part, definitions), name in required)
        for name, part in schema.get("properties", {}).items()
        if name != "metadata"
    ]


def _field(name: str, part: dict[str, Any], required: bool) -> dict[str, Any]:
    description = part.get("description", "")
    return {
        "name": name,
        "type": _widget(part),
        "required": required,
        "description": description,
        "default_value": part.get("default"),
        "choices": part.get("enum"),
        **{limit: part.get(keyword) for limit, keyword in _LIMITS.items()},
        "placeholder": f"Enter {name}...",
        "help_text": description,
    }


def _widget(part: dict[str, Any]) -> str:
    if "enum" in part:
        return "select"
    if part.get("type") == "array" and part.get("items", {}).get("type") in {"integer", "number"}:
        return "tensor"
    return _WIDGETS.get(part.get("type", ""), "text")


def _followed(part: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema whose reference, if it is one, is replaced by what it refers to."""
    target = definitions.get(part.get("$ref", "").rpartition("/")[2])
    return part if target is None else {**target, **part}
