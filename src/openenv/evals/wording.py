"""Convert the answers of a language model to actions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..chat import JsonAnswer
from ..rollouts.function_tools import inlined

# Fields of results that are not part of the observation.
_BESIDE = frozenset({"metadata", "reward", "done", "terminated", "truncated"})


class Wording:
    """Text form of actions.

    If an action is a single string by its schema, it is the model's whole answer; otherwise it is JSON, alone, in a
    code block, or after text.

    Args:
        schema: JSON Schema of actions.
    """

    def __init__(self, schema: Mapping[str, Any]):
        self._schema = inlined(schema, schema)
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

    def read(self, answer: str) -> dict[str, Any]:
        """Parses the action in an answer.

        Raises:
            InvalidAction: The answer contains no action.
        """
        if self._field is not None:
            return {self._field: answer.strip()}
        return JsonAnswer().read(answer)


def _only_text(schema: Mapping[str, Any]) -> str | None:
    """The field of an action with a single string; None for any other action."""
    fields = {name: part for name, part in schema.get("properties", {}).items() if name not in _BESIDE}
    if len(fields) != 1:
        return None
    name, part = next(iter(fields.items()))
    return name if part.get("type") == "string" and not {"enum", "const"} & part.keys() else None
