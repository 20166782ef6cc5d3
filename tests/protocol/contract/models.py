"""Pairs of models that differ in one thing."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from openenv.protocol.contract import Contract, contract_of
from openenv.types import Action, Observation, State

__all__ = ["action", "observation", "state"]


def _contract(part: str, base: type[BaseModel], fields: dict[str, Any]) -> Contract:
    annotated = {name: value if isinstance(value, tuple) else (value, ...) for name, value in fields.items()}
    model: Any = create_model("Model", __base__=base, **annotated)
    return contract_of(*(model if name == part else None for name in ("action", "observation", "state")))


def action(**fields: Any) -> Contract:
    """A contract of an action alone; a field is its type, or its type and default."""
    return _contract("action", Action, fields)


def observation(**fields: Any) -> Contract:
    return _contract("observation", Observation, fields)


def state(**fields: Any) -> Contract:
    return _contract("state", State, fields)
