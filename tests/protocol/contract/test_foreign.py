"""Schemas that somebody else sends: whatever they hold, they are read or refused."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from openenv.protocol.contract import Contract, differences, first_misfit

KEYS = st.sampled_from(
    ["type", "properties", "required", "anyOf", "oneOf", "allOf", "items", "prefixItems", "enum", "const", "minimum",
     "maxLength", "additionalProperties", "patternProperties", "propertyNames", "$ref", "$comment", "$defs", "n"]
)  # fmt: skip
WORDS = st.sampled_from(["object", "array", "string", "integer", "null", "n", "#/$defs/n", "opaque"])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["action", "observation", "state"]), SCHEMAS))
def test_anything_is_read_or_refused(schemas: Any) -> None:
    try:
        contract = Contract(schemas)
        assert Contract(contract.schemas).hash == contract.hash
        assert differences(contract, contract) == []
        assert first_misfit(contract, contract) is None or contract.parts
    except ValueError:
        pass


@given(SCHEMAS, SCHEMAS)
def test_two_of_them_are_compared_or_refused(mine: Any, theirs: Any) -> None:
    try:
        first, second = Contract({"action": mine}), Contract({"action": theirs})
        found = differences(first, second)
        if first.hash == second.hash:
            assert found == []
        for difference in (*found, first_misfit(first, second)):
            assert difference is None or difference.sentence().startswith("action")
    except ValueError:
        pass
