"""Convert observations to text for a language model, and its answers to actions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidAction

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
# Fields of results that are not part of the observation.
_BESIDE = frozenset({"metadata", "reward", "done", "terminated", "truncated"})


class Wording:
    """Text form of observations and actions.

    An observation with a single string is that string, and any other its fields as JSON. If an action is a single
    string by its schema, it is the model's whole answer; otherwise it is JSON, alone, in a code block, or after text.

    Args:
        schema: JSON Schema of actions.
    """

    def __init__(self, schema: Mapping[str, Any]):
        self._schema = inlined(schema)
        self._field = _only_text(self._schema)

    @property
    def instructions(self) -> str:
        """Instructions to the model for the form of its answers."""
        if self._field is not None:
            about = self._schema["properties"][self._field].get("description")
            return f"Answer with your action and nothing else: {about or self._field}."
        asked = {name: part for name, part in self._schema.items() if name not in {"title", "description", "$defs"}}
        asked["properties"] = {
            name: part for name, part in self._schema.get("properties", {}).items() if name not in _BESIDE
        }
        return f"Answer with one JSON object that is your action, by this JSON Schema: {json.dumps(asked)}"

    @staticmethod
    def shown(observation: Mapping[str, Any]) -> str:
        """An observation as text for the model."""
        fields = {name: value for name, value in observation.items() if name not in _BESIDE}
        if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
            return text
        return json.dumps(fields, default=str, ensure_ascii=False)

    def read(self, answer: str) -> dict[str, Any]:
        """Parses the action in an answer.

        Raises:
            InvalidAction: The answer contains no action.
        """
        if self._field is not None:
            return {self._field: answer.strip()}
        for text in (answer, *reversed(_FENCE.findall(answer)), answer[answer.find("{") : answer.rfind("}") + 1]):
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
        raise InvalidAction("the answer has no JSON object")


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema with its references inlined; a recursive one ends where it would contain itself."""
    definitions = schema.get("$defs", {})

    def walk(part: Any, within: frozenset[str]) -> Any:
        if isinstance(part, list):
            return [walk(each, within) for each in part]
        if not isinstance(part, Mapping):
            return part
        rest = {name: walk(each, within) for name, each in part.items() if name not in {"$ref", "$defs"}}
        name = str(part.get("$ref", "")).removeprefix("#/$defs/")
        if name not in definitions or name in within:
            return rest
        return {**walk(definitions[name], within | {name}), **rest}

    found: dict[str, Any] = walk(schema, frozenset())
    return found


def _only_text(schema: Mapping[str, Any]) -> str | None:
    """The field of an action with a single string; None for any other action."""
    fields = {name: part for name, part in schema.get("properties", {}).items() if name not in _BESIDE}
    if len(fields) != 1:
        return None
    name, part = next(iter(fields.items()))
    return name if part.get("type") == "string" and not {"enum", "const"} & part.keys() else None
