"""Find where two values of one schema differ, ignoring fields that do not depend on the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

# A schema marks a field that does not depend on the seed (a clock, a process name) with `"seeded": false`.
UNSEEDED = "seeded"
# Strings of these formats may differ between runs without the mark `UNSEEDED`.
_CLOCKS = ("date-time", "time", "uuid")
RELATIVE, ABSOLUTE = 1e-6, 1e-9
# Bound for recursive references.
DEPTH = 32
ABSENT = object()
"""Placeholder for a field that one of the two values lacks."""


class ValueDifference(NamedTuple):
    """The first part of two values that differs.

    Attributes:
        path: Field names and indices; empty if the two values themselves differ.
        one: The value in the first.
        other: The value in the second.
    """

    path: tuple[str | int, ...]
    one: Any
    other: Any

    @property
    def place(self) -> str:
        """The path as text, such as `board.cells[3]`; empty if the two values themselves differ."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")

    def sentence(self, first: str, second: str) -> str:
        """Both values in a sentence; `first` and `second` say when each was seen."""
        return f"{self.place or 'it'} is {_shown(self.one)} {first}, {_shown(self.other)} {second}"


class SchemaNodes:
    """The parts of a JSON Schema that describe one value: all its variants, with references resolved.

    Args:
        schema: The JSON Schema; a value that is not a mapping describes nothing.
        definitions: Definitions for its references; None for its own `$defs`.
    """

    __slots__ = ("_definitions", "_nodes")

    def __init__(self, schema: Any, definitions: Mapping[str, Any] | None = None):
        if definitions is None:
            definitions = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
        self._definitions = definitions
        self._nodes = list(self._variants(schema, DEPTH))

    @property
    def follows_no_seed(self) -> bool:
        """Whether the value may differ between runs with the same seed."""
        return any(node.get(UNSEEDED) is False or node.get("format") in _CLOCKS for node in self._nodes)

    def field(self, name: str) -> SchemaNodes:
        """The schemas of a field of the value."""
        return self._of(
            node.get("properties", {}).get(name, node.get("additionalProperties")) for node in self._nodes
        )

    def item(self, index: int) -> SchemaNodes:
        """The schemas of an item of the value."""
        firsts = ((node, node.get("prefixItems", ())) for node in self._nodes)
        return self._of(first[index] if index < len(first) else node.get("items") for node, first in firsts)

    def _of(self, schemas: Iterator[Any]) -> SchemaNodes:
        return SchemaNodes({"anyOf": [each for each in schemas if isinstance(each, Mapping)]}, self._definitions)

    def _variants(self, schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
        if not isinstance(schema, Mapping) or not depth:
            return
        yield schema
        if "$ref" in schema:
            yield from self._variants(self._definitions.get(str(schema["$ref"]).rpartition("/")[2]), depth - 1)
        for word in ("anyOf", "oneOf", "allOf"):
            for each in schema.get(word, ()):
                yield from self._variants(each, depth - 1)


def within(relative: float) -> Callable[[Any, Any], bool]:
    """Returns a comparison of scalars: floats by a relative tolerance (0: exactly), and NaN equals NaN."""

    def same(one: Any, other: Any) -> bool:
        kinds = {type(one), type(other)}
        if float not in kinds or not kinds <= {float, int}:
            return bool(one == other)
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=relative, abs_tol=ABSOLUTE if relative else 0.0)

    return same


close = within(RELATIVE)
"""Whether two scalars are equal, with a small tolerance for floats."""


def first_difference(
    one: Any,
    other: Any,
    schema: SchemaNodes,
    same: Callable[[Any, Any], bool] = close,
    beside: frozenset[str] = frozenset({"metadata"}),
) -> ValueDifference | None:
    """The first part of two values that differs; None if they differ only in fields that do not depend on the seed.

    Args:
        one: Plain data; it may contain numpy arrays.
        other: The value to compare with.
        schema: The schema nodes of both.
        same: Compares two scalars.
        beside: Top-level fields that are left out of the comparison.
    """
    return next(_differences(one, other, schema, same, beside, ()), None)


def _differences(
    one: Any,
    other: Any,
    schema: SchemaNodes,
    same: Callable[[Any, Any], bool],
    beside: frozenset[str],
    path: tuple[str | int, ...],
) -> Iterator[ValueDifference]:
    one, other = _plain(one), _plain(other)
    if _equal(one, other) or schema.follows_no_seed:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted((one.keys() | other.keys()) - beside, key=str):
            pair = one.get(name, ABSENT), other.get(name, ABSENT)
            yield from _differences(*pair, schema.field(name), same, frozenset(), (*path, name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            if not _equal(*pair):
                yield from _differences(*pair, schema.item(index), same, frozenset(), (*path, index))
    elif not same(one, other):
        yield ValueDifference(path, one, other)


def _plain(value: Any) -> Any:
    """Converts arrays and tuples to lists."""
    if isinstance(value, tuple):
        return list(value)
    tolist = None if isinstance(value, (dict, list, str, float, int)) else getattr(value, "tolist", None)
    return value if tolist is None else tolist()


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # they contain arrays
        return False


def _shown(value: Any) -> str:
    text = "absent" if value is ABSENT else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
