"""Where two contracts differ, in anything that counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .contract import PARTS, Contract
from .normal import ANYTHING, BESIDE, OPAQUE, Normal, Schema
from .words import described

__all__ = ["Difference", "differences", "first_difference"]


class Difference(NamedTuple):
    """One field that is not the same on both sides.

    Attributes:
        place: Which: `observation.board`, `action.moves[].to`.
        mine: What it is on the first side, in words.
        theirs: What it is on the second.
    """

    place: str
    mine: str
    theirs: str

    def sentence(self, here: str = "here", there: str = "on the server") -> str:
        """Both in one line: `observation.board: integer here, string on the server`."""
        return f"{self.place}: {self.mine} {here}, {self.theirs} {there}"


def differences(mine: Contract, theirs: Contract) -> list[Difference]:
    """Every field that differs, in the order of the fields of `mine`. A part that is opaque on one side does not."""
    found: list[Difference] = []
    for name in PARTS:
        if name in mine.parts and name in theirs.parts:
            found.extend(_Comparison(mine.parts[name], theirs.parts[name]).run(name))
    return found


def first_difference(mine: Contract, theirs: Contract) -> Difference | None:
    """The first of the `differences`; None if there is none."""
    return next(iter(differences(mine, theirs)), None)


class _Comparison:
    """Of two schemas, node by node."""

    def __init__(self, mine: Normal, theirs: Normal):
        self._mine = mine
        self._theirs = theirs
        self._seen: set[tuple[int, int]] = set()

    def run(self, place: str) -> Iterator[Difference]:
        return self._differ(place, self._mine.root, self._theirs.root)

    def _differ(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        mine, theirs = self._mine.resolve(mine), self._theirs.resolve(theirs)
        if OPAQUE in (mine, theirs) or (id(mine), id(theirs)) in self._seen:
            return
        self._seen.add((id(mine), id(theirs)))
        if "anyOf" in mine or "anyOf" in theirs:
            yield from self._alternatives(place, mine, theirs)
        elif mine.get("type") != theirs.get("type") or mine.get("enum") != theirs.get("enum"):
            yield self._told(place, mine, theirs)
        else:
            yield from self._contents(place, mine, theirs)

    def _alternatives(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        ours, others = mine.get("anyOf", [mine]), theirs.get("anyOf", [theirs])
        known = {self._mine.digest(each) for each in ours}
        wanted = {self._theirs.digest(each) for each in others}
        only_mine = [each for each in ours if self._mine.digest(each) not in wanted]
        only_theirs = [each for each in others if self._theirs.digest(each) not in known]
        if len(only_mine) == len(only_theirs) == 1:
            yield from self._differ(place, only_mine[0], only_theirs[0])
        elif only_mine or only_theirs:
            yield self._told(place, mine, theirs)

    def _contents(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        yield from self._fields(place, mine, theirs)
        for key, sign in (("items", "[]"), ("additionalProperties", "[*]"), ("propertyNames", " (keys)")):
            inner, other = mine.get(key, ANYTHING), theirs.get(key, ANYTHING)
            if inner is not False and other is not False:
                yield from self._differ(place + sign, inner, other)
            elif inner != other:
                words = {True: "unknown fields are forbidden", False: "unknown fields are accepted"}
                yield Difference(place, words[inner is False], words[other is False])
        first, second = mine.get("prefixItems", []), theirs.get("prefixItems", [])
        for index, (inner, other) in enumerate(zip(first, second, strict=False)):
            yield from self._differ(f"{place}[{index}]", inner, other)
        if len(first) != len(second) or _bounds(mine) != _bounds(theirs):
            yield self._told(place, mine, theirs)

    def _fields(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        ours, others = mine.get("properties", {}), theirs.get("properties", {})
        for name in [*ours, *(name for name in others if name not in ours)]:
            field = f"{place}.{name}"
            required = name in mine.get("required", ()), name in theirs.get("required", ())
            if name not in others:
                yield Difference(field, described(self._mine, ours[name]), "absent")
            elif name not in ours:
                yield Difference(field, "absent", described(self._theirs, others[name]))
            elif required[0] != required[1]:
                yield Difference(field, *("required" if each else "optional" for each in required))
            else:
                yield from self._differ(field, ours[name], others[name])

    def _told(self, place: str, mine: Schema, theirs: Schema) -> Difference:
        return Difference(place, described(self._mine, mine), described(self._theirs, theirs))


def _bounds(node: Schema) -> Schema:
    return {key: value for key, value in node.items() if key not in _NODES and not key.startswith(BESIDE)}


_NODES = {"type", "items", "additionalProperties", "propertyNames", "prefixItems", "properties", "required"}
