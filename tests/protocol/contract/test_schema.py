from __future__ import annotations

import datetime
import decimal
import enum
import json
import pathlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, RootModel, TypeAdapter
from typing_extensions import TypedDict

from openenv.protocol.contract import Contract, contract_of, first_difference
from openenv.protocol.json_schema import schema_of
from openenv.types import Action, Observation, State

T = TypeVar("T")


class Kind(enum.Enum):
    A = "a"
    B = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    fast: bool


@dataclass
class Card:
    suit: str
    rank: int = 1


class Box(BaseModel, Generic[T]):
    inside: T


class Tree(BaseModel):
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Strange:
    """A class that pydantic knows nothing of."""


class Rude(BaseModel):
    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        raise RuntimeError("no schema of mine")


class Lying(BaseModel):
    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        return {"anyOf": 3}


class Everything(Observation):
    grid: np.ndarray
    maybe: np.ndarray | None = None
    call: Callable[[int], int] | None = None
    strange: Strange | None = None
    kind: Kind = Kind.A
    when: datetime.datetime | None = None
    day: datetime.date | None = None
    blob: bytes = b""
    amount: decimal.Decimal = decimal.Decimal(0)
    place: pathlib.Path = pathlib.Path()
    number: uuid.UUID | None = None
    point: Point = Point(0)
    options: Options = {}
    card: Card | None = None
    box: Box[int] | None = None
    tree: Tree | None = None
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []
    scores: dict[str, tuple[int, str]] = {}
    table: dict[int, set[float]] = {}
    shown: Annotated[np.ndarray, PlainSerializer(lambda array: array.tolist())] | None = None
    anything: Any = None


def test_types_of_every_kind_have_a_contract_that_json_can_write() -> None:
    contract = contract_of(Action, Everything, State)
    assert json.loads(json.dumps(contract.schemas)) == contract.schemas
    again = Contract(contract.schemas)
    assert (again.schemas, again.hashes) == (contract.schemas, contract.hashes)
    assert first_difference(contract, again) is None
    fields = contract.schemas["observation"]["properties"]
    assert fields["grid"] == {"$comment": "opaque"}
    assert fields["kind"] == {"$ref": "Kind"} or "enum" in contract.parts["observation"].resolve(fields["kind"])
    assert fields["box"]["anyOf"][1] == {"type": "null"}


@pytest.mark.parametrize(
    "kind", [Strange, "no type", 3, Rude, Callable, Annotated[Strange, 1], type("Empty", (), {})]
)
def test_what_has_no_schema_is_opaque(kind: Any) -> None:
    contract = contract_of(kind, kind, kind)
    assert contract.schemas == contract.hashes == {"action": None, "observation": None, "state": None}


def test_a_class_that_writes_no_schema_where_one_should_be_is_opaque() -> None:
    assert contract_of(Lying, Observation, State).schemas["action"] is None


def test_a_class_that_refers_to_a_schema_elsewhere_is_opaque() -> None:
    class Elsewhere(Action):
        rules: dict[str, Any] = Field(default={}, json_schema_extra={"$ref": "https://example.com/rules.json"})

    contract = contract_of(Elsewhere, Observation, State)
    assert contract.hashes["action"] is contract.schemas["action"] is None
    assert contract.hashes["state"] is not None


def test_a_class_that_is_not_finished_is_opaque() -> None:
    class Unfinished(Observation):
        next: "NeverDefined"  # noqa: F821, UP037

    assert contract_of(Action, Unfinished, State).schemas["observation"] is None


@pytest.mark.parametrize("kind", [Action | Observation, Annotated[Cat | Dog, Field(discriminator="kind")], Box[str]])
def test_unions_and_generics_have_schemas(kind: Any) -> None:
    assert contract_of(kind, None, None).schemas["action"]
    assert contract_of(TypeAdapter(kind), None, None).hash == contract_of(kind, None, None).hash


def test_a_default_that_json_cannot_write_is_no_matter() -> None:
    class Odd(Action):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        kind: Kind = Field(default=object())

    assert schema_of(Odd) is not None


def test_a_root_model_is_what_it_holds() -> None:
    class Moves(RootModel[list[int]]):
        pass

    assert contract_of(Moves, None, None).hash == contract_of(list[int], None, None).hash


def test_any_says_nothing_and_a_mapping_little() -> None:
    assert contract_of(Any, object, State).schemas["action"] is None
    assert contract_of(dict[str, Any], None, None).schemas["action"] == {"type": "object"}
