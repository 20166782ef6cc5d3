"""What can be done in an environment: actions to play with."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import schema_of
from ..errors import InvalidAction
from ..execution import profile_of
from .probe import CannotTell
from .schema_values import NoValue, SchemaValues

__all__ = ["Repertoire", "offered"]

COUNT = 24
ATTEMPTS = 200
# Of an action, what is no part of it.
BESIDE = frozenset({"metadata"})
LONG_TEXT = 2000


class Repertoire:
    """The actions of one environment.

    Args:
        server: What serves it.
        given: Actions by its author, for tests.
        offered: Actions that it offers itself (`web_actions`).
        tools: Its tools, as `list_tools` tells them; None if it has none.

    Raises:
        CannotTell: There is no way to make an action.

    Attributes:
        actions: To play with; some are there more than once, so that there is always something to do.
        source: Where they are from, in words.
    """

    def __init__(
        self,
        server: Any,
        given: Sequence[Mapping[str, Any]] | None,
        offered: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ):
        self._server = server
        self._schema: dict[str, Any] = schema_of(server.action_cls) or {}
        examples = [each for each in self._schema.get("examples", ()) if isinstance(each, dict)]
        if given:
            self.source, found = "actions()", [dict(each) for each in given]
        elif examples:
            self.source, found = "the examples of the action's schema", examples
        elif offered:
            self.source, found = "web_actions", [dict(each) for each in offered]
        elif tools is not None:
            self.source, found = "the schemas of its tools", self._calls(tools)
        else:
            self.source, found = "the action's schema", self._made(self._schema)
        self.actions = (found * COUNT)[: max(COUNT, len(found))]
        self.chosen = self.source in {"actions()", "web_actions"}

    @staticmethod
    def takes_tools(server: Any) -> bool:
        """Whether the environment is one whose actions are tool calls."""
        return '"call_tool"' in json.dumps(schema_of(server.action_type) or {})

    def accepts(self, action: Any) -> bool:
        """Whether the server takes an action for one."""
        try:
            self._server.read_action(action)
        except InvalidAction:
            return False
        return True

    def wrong(self) -> list[Any]:
        """What is no action, each wrong in another way."""
        good = self.actions[0]
        wrong: list[Any] = [{**good, "no_such_field": 1}, {}]
        wrong += [{key: each for key, each in good.items() if key != name} for name in good]
        wrong += [{**good, name: ["no", {"such": "value"}]} for name in good]
        wrong += [{**good, name: None} for name in good]
        return [each for number, each in enumerate(wrong) if each not in wrong[:number] and not self.accepts(each)]

    def edges(self) -> list[dict[str, Any]]:
        """Actions at the limits of what the schema allows."""
        good = self.actions[0]
        made = []
        for name, part in self._schema.get("properties", {}).items():
            if name in BESIDE or "examples" in part:
                continue
            made += [{**good, name: value} for value in _edges(part)]
        return [each for each in made if self.accepts(each)]

    def _calls(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if not tools:
            raise CannotTell("the environment offers no tools, so there is nothing to do: declare some")
        made = []
        for seed in range(3):
            for tool in tools:
                schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"}
                try:
                    arguments = SchemaValues(schema, seed).value()
                except NoValue as reason:
                    raise CannotTell(f"no call of the tool {tool.get('name')} can be made up: {reason}") from None
                made.append({"type": "call_tool", "tool_name": tool["name"], "arguments": arguments})
        return made

    def _made(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        if not schema:
            raise CannotTell(
                f"no action can be made up, since {self._server.action_cls!r} has no JSON Schema; {HINT}"
            )
        values = SchemaValues(schema, 1, BESIDE)
        found = []
        try:
            for _ in range(ATTEMPTS):
                value = values.value()
                if isinstance(value, dict) and self.accepts(value):
                    found.append(value)
                if len(found) == COUNT:
                    break
        except NoValue as reason:
            raise CannotTell(f"no action can be made up from its schema: {reason}; {HINT}") from None
        if not found:
            raise CannotTell(f"of {ATTEMPTS} actions made up from the schema, the server accepted none; {HINT}")
        return found


HINT = (
    "give examples in the action's schema (json_schema_extra), return some from web_actions, or say them in "
    "EnvironmentConformance.actions()"
)


def offered(environment: Any, _: None) -> Any:
    """The operation that resets an environment and asks what it offers then."""
    if not callable(getattr(environment, "web_actions", None)) or _says_nothing(environment):
        return []
    observation = profile_of(type(environment)).reset(environment, {})
    if inspect.isawaitable(observation):
        return _offered_later(environment, observation)
    return [dict(action) for _, action in environment.web_actions(observation)]


async def _offered_later(environment: Any, observation: Any) -> list[dict[str, Any]]:
    return [dict(action) for _, action in environment.web_actions(await observation)]


def _says_nothing(environment: Any) -> bool:
    from ..environment import Environment

    return getattr(type(environment), "web_actions", None) is Environment.web_actions


def _edges(part: Mapping[str, Any]) -> list[Any]:
    kind = part.get("type")
    if "enum" in part or "const" in part:
        return []
    if kind == "string":
        texts = ["", "a\u00e9\u4f60\U0001f600", "x" * min(LONG_TEXT, int(part.get("maxLength", LONG_TEXT)))]
        return [text for text in texts if len(text) >= int(part.get("minLength", 0))]
    if kind in {"integer", "number"}:
        bounds = [part[key] for key in ("minimum", "maximum") if key in part]
        if kind == "integer" and not any("inimum" in key for key in part):
            bounds.append(-1)
        if kind == "integer" and not any("aximum" in key for key in part):
            bounds.append(1000)
        return bounds
    return [[]] if kind == "array" else []
