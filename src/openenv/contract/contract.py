"""Action, observation and state of an environment, ready to be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Any, Self

from .normal import ANYTHING, HASH_DIGITS, Normal, Schema, accepts_all
from .schema import schema_of

__all__ = ["PARTS", "Contract", "contract_of", "hash_of"]

PARTS = ("action", "observation", "state")
"""What a contract has a schema of."""
# They travel beside the observation, and versions of this package write their types differently.
_BESIDE = ("done", "reward", "metadata")


class Contract:
    """What one side takes and gives.

    Args:
        schemas: JSON Schemas by name of the part. A part that is absent, or None, is opaque: nothing is known of it,
            and it compares equal to anything.

    Raises:
        ValueError: A schema is none.

    Attributes:
        parts: The parts that are not opaque, in normal form.
    """

    def __init__(self, schemas: Mapping[str, Any]):
        self.parts: dict[str, Normal] = {}
        for name in PARTS:
            schema = schemas.get(name)
            if schema is None:
                continue
            if not isinstance(schema, Mapping):
                raise ValueError(f"the schema of {name} is {schema!r:.100}, no map")
            normal = Normal(schema)
            if name == "observation":
                for variant in normal.root.get("anyOf", [normal.root]):
                    _set_free(normal.resolve(variant))
            normal.digest(normal.root)  # fails here, and not where a hash is asked for, if a reference leads nowhere
            if not accepts_all(normal.root):
                self.parts[name] = normal

    @cached_property
    def schemas(self) -> dict[str, Schema | None]:
        """The schemas of the parts in normal form: types and bounds without words; None for an opaque part."""
        return {name: self.parts[name].schema() if name in self.parts else None for name in PARTS}

    @cached_property
    def hashes(self) -> dict[str, str | None]:
        """A hash for each part, None for an opaque one. Equal for equal meanings, in any process."""
        return {name: self.parts[name].hash if name in self.parts else None for name in PARTS}

    @property
    def hash(self) -> str:
        """One hash for the whole."""
        return hash_of(self.hashes)

    def only(self, names: Container[str]) -> Self:
        """A contract of some of its parts; the others are opaque."""
        part = type(self)({})
        part.parts = {name: normal for name, normal in self.parts.items() if name in names}
        return part


def hash_of(hashes: Mapping[str, str | None]) -> str:
    """One hash for the hashes of all parts."""
    written = " ".join(f"{name}={hashes.get(name)}" for name in PARTS)
    return hashlib.sha256(written.encode()).hexdigest()[:HASH_DIGITS]


def contract_of(action: Any, observation: Any, state: Any) -> Contract:
    """The contract of an environment's types. Never raises: what has no schema is opaque.

    Args:
        action: What `step` takes.
        observation: What `reset` and `step` return.
        state: What `state` is. Each is a model, or whatever pydantic validates, or a `TypeAdapter`; None: unknown.
    """
    schemas: dict[str, Schema | None] = {}
    for name, kind in zip(PARTS, (action, observation, state), strict=True):
        schemas[name] = None if kind is None else schema_of(kind)
        try:
            Contract({name: schemas[name]})
        except ValueError:  # a class may write its schema itself, and anything into it
            schemas[name] = None
    return Contract(schemas)


def _set_free(observation: Schema) -> None:
    """Of what travels beside the observation, only the names count."""
    properties = observation.get("properties")
    if properties is None:
        return
    observation["properties"] = {name: ANYTHING if name in _BESIDE else value for name, value in properties.items()}
    required = [name for name in observation.get("required", ()) if name not in _BESIDE]
    observation.pop("required", None)
    if required:
        observation["required"] = required
