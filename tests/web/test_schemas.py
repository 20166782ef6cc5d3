"""Forms for schemas of every shape: no page stays empty because of one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from .conftest import Enter

TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
}
SCHEMAS: dict[str, Any] = {
    "none": None,
    "empty": {},
    "anything": {"type": "object", "additionalProperties": True, "properties": {"metadata": {"type": "object"}}},
    "no fields": {"type": "object", "properties": {}, "additionalProperties": False},
    "union": {
        "anyOf": [
            {"type": "object", "title": "Move", "properties": {"to": {"type": "string"}}, "required": ["to"]},
            {"type": "object", "title": "Wait", "properties": {"seconds": {"type": "number"}}},
        ]
    },
    "told apart": {
        "oneOf": [{"$ref": "#/$defs/Move"}, {"$ref": "#/$defs/Wait"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {
            "Move": {"type": "object", "properties": {"kind": {"const": "move"}, "to": {"type": "string"}}},
            "Wait": {"type": "object", "properties": {"kind": {"const": "wait"}}},
        },
    },
    "recursive": {"$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
    "no such reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Nowhere"}}},
    "many types": {"type": "object", "properties": {"a": {"type": ["string", "integer", "null"]}, "b": True}},
    "a tuple": {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}, {}]}}},
    "odd names": {
        "type": "object",
        "properties": {"a.b/c~d[0]": {"type": "string"}, "__proto__": {"type": "string"}},
    },
    "a pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?P<x>a)"}}},
    "dates": {
        "type": "object",
        "properties": {"a": {"type": "string", "format": "date-time"}, "b": {"format": "uri"}},
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_of_any_shape_makes_a_form(counter: str, enter: Enter, name: str) -> None:
    visitor = enter(refusals=True)
    page = visitor.page

    def changed(route: Route) -> None:
        answer = route.fetch()
        metadata = answer.json()
        metadata["schemas"]["action"] = SCHEMAS[name]
        route.fulfill(response=answer, body=json.dumps(metadata))

    page.route("**/web/metadata", changed)
    visitor.open(counter).reset()
    expect(page.locator("#step-button")).to_be_enabled()
    page.locator("#step-button").click()
    page.locator("#observation-title").wait_for()


def test_what_is_typed_as_json_is_the_whole_action(counter: str, enter: Enter) -> None:
    visitor = enter()
    page = visitor.page

    def changed(route: Route) -> None:
        answer = route.fetch()
        metadata = answer.json()
        metadata["schemas"]["action"] = None
        route.fulfill(response=answer, body=json.dumps(metadata))

    page.route("**/web/metadata", changed)
    visitor.open(counter).reset(seed=1)
    page.locator("#action_whole").fill('{"by": 41}')
    visitor.step(1)
    assert "42" in visitor.observation().inner_text()
