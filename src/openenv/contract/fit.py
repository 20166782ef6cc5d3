"""Whether a client and a server understand each other, though their types may differ.

What the client may send must be accepted by the server, and what the server may send by the client. So an optional
field that only the receiver has is no misfit, one that only the sender has is one where unknown fields are
forbidden, and an integer fits where any number does. Patterns and formats of texts are not compared, as they are
written differently by versions of pydantic; neither is what one side declares as anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .contract import PARTS, Contract
from .difference import Difference
from .normal import ANYTHING, Normal, Schema, accepts_all
from .words import described

__all__ = ["first_misfit"]

# What travels beside the fields of an observation, and is put among them by the client.
_ALWAYS_SENT = {"done": ANYTHING, "reward": ANYTHING}
# Fields that all actions and observations have.
_COMMON = frozenset({"done", "reward", "metadata"})
# What a receiver makes of what it did not ask for, without loss.
_WIDENS = {("integer", "number"), ("boolean", "integer"), ("boolean", "number")}


def first_misfit(client: Contract, server: Contract) -> Difference | None:
    """The first field on which client and server do not understand each other; None if they do.

    Args:
        client: What the client declares. (`mine` of the result.)
        server: What the server declares.
    """
    for name in PARTS:
        if name not in client.parts or name not in server.parts:
            continue
        mine, theirs = client.parts[name], server.parts[name]
        fit = _Fit(mine, theirs, "action") if name == "action" else _Fit(theirs, mine, name)
        misfit = fit.run(name)
        if misfit is not None:
            return misfit.difference(client_sends=name == "action")
    return None


class _Misfit(NamedTuple):
    place: str
    sent: str
    taken: str
    rank: int
    """How much of the values fits: of several alternatives, the nearest one is told."""

    def difference(self, client_sends: bool) -> Difference:
        mine, theirs = (self.sent, self.taken) if client_sends else (self.taken, self.sent)
        return Difference(self.place, mine, theirs)


class _Fit:
    """Of what one side sends into what the other takes."""

    def __init__(self, sender: Normal, receiver: Normal, part: str):
        self._sender = sender
        self._receiver = receiver
        self._part = part
        self._known: dict[tuple[int, int], _Misfit | None] = {}

    def run(self, part: str) -> _Misfit | None:
        return self._misfit(part, self._sender.root, self._receiver.root, 0)

    def _misfit(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        sent, taken = self._sender.resolve(sent), self._receiver.resolve(taken)
        if accepts_all(sent) or accepts_all(taken):
            return None
        key = (id(sent), id(taken))
        if key not in self._known:
            self._known[key] = None  # what refers to itself fits if all else does
            self._known[key] = self._compared(place, sent, taken, depth)
        return self._known[key]

    def _compared(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        if "anyOf" in sent:
            misfits = (self._misfit(place, each, taken, depth) for each in sent["anyOf"])
            return next((misfit for misfit in misfits if misfit is not None), None)
        if "anyOf" in taken:
            found = [self._misfit(place, sent, each, depth) for each in taken["anyOf"]]
            if None in found:
                return None
            nearest = max((misfit for misfit in found if misfit is not None), key=lambda misfit: misfit.rank)
            return nearest if nearest.rank > depth else self._told(place, sent, taken, depth)
        if not _same_kind(sent, taken):
            return self._told(place, sent, taken, depth)
        for check in _CHECKS:
            misfit = check(self, place, sent, taken, depth)
            if misfit is not None:
                return misfit
        return None

    def _fields(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        top = place == self._part
        mine, theirs = dict(sent.get("properties", {})), taken.get("properties", {})
        if "properties" not in sent or (top and not mine.keys() - _COMMON and self._part != "action"):
            return None  # a mapping, or a base class in place of what is really sent
        if top and self._part == "observation":
            mine |= _ALWAYS_SENT
        for name in [*theirs, *(name for name in mine if name not in theirs)]:
            misfit = self._field(f"{place}.{name}", name, (mine, theirs), (sent, taken), depth)
            if misfit is not None:
                return misfit
        return None

    def _field(
        self, place: str, name: str, fields: tuple[Schema, Schema], nodes: tuple[Schema, Schema], depth: int
    ) -> _Misfit | None:
        (mine, theirs), (sent, taken) = fields, nodes
        if name in mine and name in theirs:
            return self._misfit(place, mine[name], theirs[name], depth + 1)
        if name in mine:
            unknown = taken.get("additionalProperties", ANYTHING)
            if name == "metadata":  # not sent if it is empty
                return None
            if unknown is not False:
                return self._misfit(place, mine[name], unknown, depth + 1)
            return _Misfit(place, described(self._sender, mine[name]), "not known", depth + 1)
        if name not in taken.get("required", ()) or sent.get("additionalProperties") == ANYTHING:
            return None
        return _Misfit(place, "not sent", f"{described(self._receiver, theirs[name])}, required", depth + 1)

    def _values(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        mine, theirs = sent.get("additionalProperties", ANYTHING), taken.get("additionalProperties", ANYTHING)
        if mine is False or theirs is False:
            return None
        return self._misfit(f"{place}[*]", mine, theirs, depth + 1)

    def _elements(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        mine, theirs = sent.get("prefixItems", []), taken.get("prefixItems", [])
        for index, inner in enumerate(mine):
            other = theirs[index] if index < len(theirs) else taken.get("items", ANYTHING)
            misfit = self._misfit(f"{place}[{index}]", inner, other, depth + 1)
            if misfit is not None:
                return misfit
        return self._misfit(f"{place}[]", sent.get("items", ANYTHING), taken.get("items", ANYTHING), depth + 1)

    def _bounds(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        fits = all(_within(sent, taken, least, most) for least, most in _RANGES)
        return None if fits else self._told(place, sent, taken, depth)

    def _told(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit:
        return _Misfit(place, described(self._sender, sent), described(self._receiver, taken), depth)


_CHECKS: tuple[Callable[[_Fit, str, Schema, Schema, int], _Misfit | None], ...] = (
    _Fit._fields,
    _Fit._values,
    _Fit._elements,
    _Fit._bounds,
)
_RANGES = (
    (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    (("minLength", ""), ("maxLength", "")),
    (("minItems", ""), ("maxItems", "")),
)


def _same_kind(sent: Schema, taken: Schema) -> bool:
    if "enum" in taken:
        return "enum" in sent and all(value in taken["enum"] for value in sent["enum"])
    if "enum" in sent:
        kinds = {_KINDS.get(type(value), "object") for value in sent["enum"]}
        return all(kind == taken.get("type") or (kind, taken.get("type")) in _WIDENS for kind in kinds)
    kind, wanted = sent.get("type"), taken.get("type")
    return kind == wanted or kind is None or wanted is None or (kind, wanted) in _WIDENS


_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _within(sent: Schema, taken: Schema, lower: tuple[str, str], upper: tuple[str, str]) -> bool:
    """Whether each value that is sent lies between the bounds of those that are taken."""
    return _reaches(sent, taken, lower, 1) and _reaches(sent, taken, upper, -1)


def _reaches(sent: Schema, taken: Schema, names: tuple[str, str], sign: int) -> bool:
    wanted, strictly = _bound(taken, names, sign)
    given, open_end = _bound(sent, names, sign)
    if wanted is None:
        return True
    if given is None:
        return False
    return given > wanted or (given == wanted and (open_end or not strictly))


def _bound(node: Schema, names: tuple[str, str], sign: int) -> tuple[float | None, bool]:
    """The tightest bound on one side, upwards after `sign`, and whether it is excluded itself."""
    plain, exclusive = (node.get(name) for name in names)
    found = [
        (sign * value, excluded)
        for value, excluded in ((plain, False), (exclusive, True))
        if isinstance(value, (int, float))
    ]
    return max(found) if found else (None, False)
