"""Whatever schema a tool has: what transformers reads of its method is a schema too, of the same arguments."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from openenv.adapters.trl.methods import method_of
from openenv.adapters.trl.tools import server_tool

WORDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "Args:\n  a: b",
            "what it Returns: x",
            "one (choices: red, blue)",
            "(choices: [",
            "a: b\n  c: d",
            "Raises: no",
            "\t",
        ]
    ),
)
SCALARS = st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind})
ENUMS = st.lists(st.one_of(st.text(max_size=3), st.integers(), st.none()), min_size=1, max_size=3, unique=True).map(
    lambda values: {"enum": values}
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    fields = st.dictionaries(st.text(max_size=5), inner, max_size=3)
    return st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        several.map(lambda places: {"type": "array", "prefixItems": places}),
        several.map(lambda parts: {"anyOf": parts}),
        several.map(lambda parts: {"allOf": parts}),
        fields.map(lambda properties: {"type": "object", "properties": properties}),
        inner.map(lambda values: {"type": "object", "additionalProperties": values}),
        st.just({"$ref": "#/$defs/A"}),
        st.just({}),
    )


SCHEMAS = st.recursive(st.one_of(SCALARS, ENUMS), nested, max_leaves=6)
DESCRIBED = st.builds(
    lambda schema, words, default: {**schema, **({"description": words} if words else {}), **default},
    SCHEMAS,
    WORDS,
    st.sampled_from([{}, {"default": None}, {"default": 3}, {"minimum": 2}]),
)


@given(
    st.dictionaries(st.text("abc-1 ", min_size=1, max_size=3), DESCRIBED, max_size=4), WORDS, st.sets(st.text("abc"))
)
def test_every_tool_has_a_schema_that_transformers_can_read(
    properties: dict[str, Any], words: str, required: set[str]
) -> None:
    properties = {"".join(letter for letter in name if letter.isalnum()): each for name, each in properties.items()}
    schema = {
        "type": "object",
        "$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}},
        "properties": properties,
        "required": sorted(required & properties.keys()),
    }
    tool = server_tool("use", {"name": "use", "description": words, "input_schema": schema})
    holder: Any = type("Holder", (), {"use": method_of(tool, lambda *_: None)})()

    read = get_json_schema(holder.use)["function"]

    assert len(read["parameters"]["properties"]) == len(properties)
    assert len(read["parameters"].get("required", [])) == len(schema["required"])
