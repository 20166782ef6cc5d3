"""The contract of an environment: schemas of action, observation and state, and whether a client fits a server."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self

from .json_schema import (
    ANYTHING,
    BESIDE,
    HASH_DIGITS,
    OPAQUE,
    NormalSchema,
    Schema,
    accepts_all,
    describe_schema,
    schema_of,
)

__all__ = [
    "PARTS",
    "Contract",
    "Difference",
    "contract_of",
    "differences",
    "first_difference",
    "first_misfit",
    "hash_of",
]


PARTS = ("action", "observation", "state")
"""The parts of a contract."""
# These fields are sent beside the observation, and versions of this package write their types differently.
_BESIDE = ("done", "reward", "metadata")


class Contract:
    """The schemas of one side.

    Args:
        schemas: JSON Schemas by name of the part. A part that is absent, or None, is opaque: its type is unknown, and
            it compares equal to anything.

    Raises:
        ValueError: A schema is not a valid JSON Schema.

    Attributes:
        parts: The parts that are not opaque, in normal form.
    """

    def __init__(self, schemas: Mapping[str, Any]):
        self.parts: dict[str, NormalSchema] = {}
        for name in PARTS:
            schema = schemas.get(name)
            if schema is None:
                continue
            if not isinstance(schema, Mapping):
                raise ValueError(f"the schema of {name} must be an object, got {schema!r:.100}")
            normal = NormalSchema(schema)
            if name == "observation":
                for variant in normal.root.get("anyOf", [normal.root]):
                    _set_free(normal.resolve(variant))
            normal.digest(normal.root)  # an undefined reference fails here instead of where a hash is needed
            if not accepts_all(normal.root):
                self.parts[name] = normal

    @cached_property
    def schemas(self) -> dict[str, Schema | None]:
        """The schemas of the parts in normal form: types and bounds without descriptions; None for an opaque part."""
        return {name: self.parts[name].schema() if name in self.parts else None for name in PARTS}

    @cached_property
    def hashes(self) -> dict[str, str | None]:
        """A hash for each part; None for an opaque one. Equivalent schemas have equal hashes, in any process."""
        return {name: self.parts[name].hash if name in self.parts else None for name in PARTS}

    @property
    def hash(self) -> str:
        """One hash for the whole contract."""
        return hash_of(self.hashes)

    def only(self, names: Container[str]) -> Self:
        """A contract with some of its parts; the others are opaque."""
        part = type(self)({})
        part.parts = {name: normal for name, normal in self.parts.items() if name in names}
        return part


def hash_of(hashes: Mapping[str, str | None]) -> str:
    """One hash for the hashes of all parts."""
    written = " ".join(f"{name}={hashes.get(name)}" for name in PARTS)
    return hashlib.sha256(written.encode()).hexdigest()[:HASH_DIGITS]


def contract_of(action: Any, observation: Any, state: Any) -> Contract:
    """The contract of an environment's types. Never raises: a type without a schema is opaque.

    Each type is a model, another type that pydantic supports, or a `TypeAdapter`; None if unknown.

    Args:
        action: The type that `step` takes.
        observation: The type that `reset` and `step` return.
        state: The type of `state`.
    """
    schemas: dict[str, Schema | None] = {}
    for name, kind in zip(PARTS, (action, observation, state), strict=True):
        schemas[name] = None if kind is None else schema_of(kind)
        try:
            Contract({name: schemas[name]})
        except ValueError:  # a class may write its schema itself, with any contents
            schemas[name] = None
    return Contract(schemas)


def _set_free(observation: Schema) -> None:
    """Accepts any type for the fields that are sent beside the observation: only their names count."""
    properties = observation.get("properties")
    if properties is None:
        return
    observation["properties"] = {name: ANYTHING if name in _BESIDE else value for name, value in properties.items()}
    required = [name for name in observation.get("required", ()) if name not in _BESIDE]
    observation.pop("required", None)
    if required:
        observation["required"] = required


class Difference(NamedTuple):
    """One field that differs between the two sides.

    Attributes:
        place: The path of the field: `observation.board`, `action.moves[].to`.
        mine: A description of its type on the first side.
        theirs: A description of its type on the second side.
    """

    place: str
    mine: str
    theirs: str

    def sentence(self, here: str = "here", there: str = "on the server") -> str:
        """Both in one line: `observation.board: integer here, string on the server`."""
        return f"{self.place}: {self.mine} {here}, {self.theirs} {there}"


def differences(mine: Contract, theirs: Contract) -> list[Difference]:
    """Every field that differs, in the order of the fields of `mine`. Skips parts that are opaque on one side."""
    found: list[Difference] = []
    for name in PARTS:
        if name in mine.parts and name in theirs.parts:
            ours, others = mine.parts[name], theirs.parts[name]
            found.extend(_Comparison(ours, others).differ(name, ours.root, others.root))
    return found


def first_difference(mine: Contract, theirs: Contract) -> Difference | None:
    """The first of the `differences`; None if the contracts are equal."""
    return next(iter(differences(mine, theirs)), None)


class _Comparison:
    """Compares two schemas node by node."""

    def __init__(self, mine: NormalSchema, theirs: NormalSchema):
        self._mine = mine
        self._theirs = theirs
        self._seen: set[tuple[int, int]] = set()

    def differ(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        mine, theirs = self._mine.resolve(mine), self._theirs.resolve(theirs)
        if OPAQUE in (mine, theirs) or (id(mine), id(theirs)) in self._seen:
            return
        self._seen.add((id(mine), id(theirs)))
        if "anyOf" in mine or "anyOf" in theirs:
            yield from self._alternatives(place, mine, theirs)
        elif mine.get("type") != theirs.get("type") or mine.get("enum") != theirs.get("enum"):
            yield self._difference(place, mine, theirs)
        else:
            yield from self._contents(place, mine, theirs)

    def _alternatives(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        ours, others = mine.get("anyOf", [mine]), theirs.get("anyOf", [theirs])
        known = {self._mine.digest(each) for each in ours}
        wanted = {self._theirs.digest(each) for each in others}
        only_mine = [each for each in ours if self._mine.digest(each) not in wanted]
        only_theirs = [each for each in others if self._theirs.digest(each) not in known]
        if len(only_mine) == len(only_theirs) == 1:
            yield from self.differ(place, only_mine[0], only_theirs[0])
        elif only_mine or only_theirs:
            yield self._difference(place, mine, theirs)

    def _contents(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        yield from self._fields(place, mine, theirs)
        for key, sign in (("items", "[]"), ("additionalProperties", "[*]"), ("propertyNames", " (keys)")):
            inner, other = mine.get(key, ANYTHING), theirs.get(key, ANYTHING)
            if inner is not False and other is not False:
                yield from self.differ(place + sign, inner, other)
            elif inner != other:
                words = {True: "unknown fields are forbidden", False: "unknown fields are accepted"}
                yield Difference(place, words[inner is False], words[other is False])
        first, second = mine.get("prefixItems", []), theirs.get("prefixItems", [])
        for index, (inner, other) in enumerate(zip(first, second, strict=False)):
            yield from self.differ(f"{place}[{index}]", inner, other)
        if len(first) != len(second) or _bounds(mine) != _bounds(theirs):
            yield self._difference(place, mine, theirs)

    def _fields(self, place: str, mine: Schema, theirs: Schema) -> Iterator[Difference]:
        ours, others = mine.get("properties", {}), theirs.get("properties", {})
        for name in [*ours, *(name for name in others if name not in ours)]:
            field = f"{place}.{name}"
            required = name in mine.get("required", ()), name in theirs.get("required", ())
            if name not in others:
                yield Difference(field, describe_schema(self._mine, ours[name]), "absent")
            elif name not in ours:
                yield Difference(field, "absent", describe_schema(self._theirs, others[name]))
            elif required[0] != required[1]:
                yield Difference(field, *("required" if each else "optional" for each in required))
            else:
                yield from self.differ(field, ours[name], others[name])

    def _difference(self, place: str, mine: Schema, theirs: Schema) -> Difference:
        return Difference(place, describe_schema(self._mine, mine), describe_schema(self._theirs, theirs))


def _bounds(node: Schema) -> Schema:
    return {key: value for key, value in node.items() if key not in _NODES and not key.startswith(BESIDE)}


_NODES = {"type", "items", "additionalProperties", "propertyNames", "prefixItems", "properties", "required"}


# Values that are sent beside the fields of an observation, and that the client adds to its fields.
_ALWAYS_SENT = {"done": ANYTHING, "reward": ANYTHING}
# Fields that all actions and observations have.
_COMMON = frozenset({"done", "reward", "metadata"})
# Conversions that a receiver makes without loss.
_WIDENS = {("integer", "number"), ("boolean", "integer"), ("boolean", "number")}


def first_misfit(client: Contract, server: Contract) -> Difference | None:
    """The first field for which client and server are incompatible; None if they are compatible.

    Args:
        client: The types that the client declares (`mine` of the result).
        server: The types that the server declares.
    """
    for name in PARTS:
        if name not in client.parts or name not in server.parts:
            continue
        mine, theirs = client.parts[name], server.parts[name]
        sender, receiver = (mine, theirs) if name == "action" else (theirs, mine)
        misfit = _Fit(sender, receiver, name).misfit(name, sender.root, receiver.root, 0)
        if misfit is not None:
            place, sent, taken, _ = misfit
            return Difference(place, sent, taken) if name == "action" else Difference(place, taken, sent)
    return None


class _Misfit(NamedTuple):
    place: str
    sent: str
    taken: str
    rank: int
    """How well the values fit: of several alternatives, the closest one is reported."""


class _Fit:
    """Compares the schema of the values that one side sends with the schema that the other side accepts."""

    def __init__(self, sender: NormalSchema, receiver: NormalSchema, part: str):
        self._sender = sender
        self._receiver = receiver
        self._part = part
        self._known: dict[tuple[int, int], _Misfit | None] = {}

    def misfit(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        sent, taken = self._sender.resolve(sent), self._receiver.resolve(taken)
        if accepts_all(sent) or accepts_all(taken):
            return None
        key = (id(sent), id(taken))
        if key not in self._known:
            self._known[key] = None  # a recursive type fits if the rest of it does
            self._known[key] = self._compare(place, sent, taken, depth)
        return self._known[key]

    def _compare(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit | None:
        if "anyOf" in taken and "anyOf" not in sent:
            found = [self.misfit(place, sent, each, depth) for each in taken["anyOf"]]
            if None in found:
                return None
            nearest = max((misfit for misfit in found if misfit is not None), key=lambda misfit: misfit.rank)
            return nearest if nearest.rank > depth else self._mismatch(place, sent, taken, depth)
        misfits: Iterable[_Misfit | None]
        if "anyOf" in sent:
            misfits = (self.misfit(place, each, taken, depth) for each in sent["anyOf"])
        elif not _is_same_kind(sent, taken):
            return self._mismatch(place, sent, taken, depth)
        else:
            misfits = chain(self._fields(place, sent, taken, depth), self._contents(place, sent, taken, depth))
        return next((misfit for misfit in misfits if misfit is not None), None)

    def _fields(self, place: str, sent: Schema, taken: Schema, depth: int) -> Iterator[_Misfit | None]:
        top = place == self._part
        mine, theirs = dict(sent.get("properties", {})), taken.get("properties", {})
        if "properties" not in sent or (top and not mine.keys() - _COMMON and self._part != "action"):
            return  # a mapping, or a base class of the class that is sent
        if top and self._part == "observation":
            mine |= _ALWAYS_SENT
        unknown = taken.get("additionalProperties", ANYTHING)
        for name in [*theirs, *(name for name in mine if name not in theirs)]:
            field = f"{place}.{name}"
            if name in mine and name in theirs:
                yield self.misfit(field, mine[name], theirs[name], depth + 1)
            elif name in mine:
                if name == "metadata":  # not sent if it is empty
                    continue
                if unknown is not False:
                    yield self.misfit(field, mine[name], unknown, depth + 1)
                else:
                    yield _Misfit(field, describe_schema(self._sender, mine[name]), "not known", depth + 1)
            elif name in taken.get("required", ()) and sent.get("additionalProperties") != ANYTHING:
                wanted = f"{describe_schema(self._receiver, theirs[name])}, required"
                yield _Misfit(field, "not sent", wanted, depth + 1)

    def _contents(self, place: str, sent: Schema, taken: Schema, depth: int) -> Iterator[_Misfit | None]:
        mine, theirs = sent.get("additionalProperties", ANYTHING), taken.get("additionalProperties", ANYTHING)
        if mine is not False and theirs is not False:
            yield self.misfit(f"{place}[*]", mine, theirs, depth + 1)
        first = taken.get("prefixItems", [])
        for index, inner in enumerate(sent.get("prefixItems", [])):
            other = first[index] if index < len(first) else taken.get("items", ANYTHING)
            yield self.misfit(f"{place}[{index}]", inner, other, depth + 1)
        yield self.misfit(f"{place}[]", sent.get("items", ANYTHING), taken.get("items", ANYTHING), depth + 1)
        if not all(_reaches(sent, taken, least, 1) and _reaches(sent, taken, most, -1) for least, most in _RANGES):
            yield self._mismatch(place, sent, taken, depth)

    def _mismatch(self, place: str, sent: Schema, taken: Schema, depth: int) -> _Misfit:
        return _Misfit(place, describe_schema(self._sender, sent), describe_schema(self._receiver, taken), depth)


_RANGES = (
    (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    (("minLength", ""), ("maxLength", "")),
    (("minItems", ""), ("maxItems", "")),
)


def _is_same_kind(sent: Schema, taken: Schema) -> bool:
    if "enum" in taken:
        return "enum" in sent and all(value in taken["enum"] for value in sent["enum"])
    if "enum" in sent:
        kinds = {_KINDS.get(type(value), "object") for value in sent["enum"]}
        return all(kind == taken.get("type") or (kind, taken.get("type")) in _WIDENS for kind in kinds)
    kind, wanted = sent.get("type"), taken.get("type")
    return kind == wanted or kind is None or wanted is None or (kind, wanted) in _WIDENS


_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _reaches(sent: Schema, taken: Schema, names: tuple[str, str], sign: int) -> bool:
    """Whether the values that are sent lie within one bound of the values that are accepted."""
    wanted, strictly = _bound(taken, names, sign)
    given, open_end = _bound(sent, names, sign)
    if wanted is None:
        return True
    if given is None:
        return False
    return given > wanted or (given == wanted and (open_end or not strictly))


def _bound(node: Schema, names: tuple[str, str], sign: int) -> tuple[float | None, bool]:
    """The tightest bound on one side, an upper one for a positive `sign`, and whether it is exclusive."""
    plain, exclusive = (node.get(name) for name in names)
    found = [
        (sign * value, excluded)
        for value, excluded in ((plain, False), (exclusive, True))
        if isinstance(value, (int, float))
    ]
    return max(found) if found else (None, False)
