from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field

from openenv.protocol.contract import Contract, contract_of, differences, first_difference
from openenv.types import Action, Observation, State

from .models import action, observation


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class LongCat(BaseModel):
    kind: Literal["cat"]
    lives: str = "nine"


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({"board": int}, {"board": str}, "board: integer here, string on the server"),
        ({"board": int}, {}, "board: integer here, absent on the server"),
        ({}, {"board": list[int]}, "board: absent here, list of integer on the server"),
        ({"board": int}, {"board": (int, 0)}, "board: required here, optional on the server"),
        (
            {"board": Literal["x"]},
            {"board": Literal["x", "o"]},
            "board: 'x' here, one of 'o', 'x' on the server",
        ),
        ({"n": Annotated[int, Field(ge=1)]}, {"n": int}, "n: integer >= 1 here, integer on the server"),
        ({"n": list[list[int]]}, {"n": list[list[str]]}, "n[][]: integer here, string on the server"),
        ({"n": dict[str, int]}, {"n": dict[str, str]}, "n[*]: integer here, string on the server"),
        ({"n": tuple[int, int]}, {"n": tuple[int, str]}, "n[1]: integer here, string on the server"),
        ({"n": int | None}, {"n": str | None}, "n: integer here, string on the server"),
        ({"n": int}, {"n": int | None}, "n: integer here, integer or null on the server"),
        ({"n": list[Cat | Dog]}, {"n": list[LongCat | Dog]}, "n[].lives: integer here, string on the server"),
        ({"n": Any}, {"n": int}, "n: anything here, integer on the server"),
    ],
)
def test_the_first_difference_is_a_sentence(mine: Any, theirs: Any, told: str) -> None:
    found = first_difference(observation(**mine), observation(**theirs))
    assert found is not None
    assert found.sentence() == f"observation.{told}"


def test_each_field_that_differs_is_told_in_the_order_of_the_parts() -> None:
    mine = contract_of(type("A", (Action,), {"__annotations__": {"a": int}}), Observation, State)
    theirs = contract_of(
        type("A", (Action,), {"__annotations__": {"b": int}}),
        type("O", (Observation,), {"__annotations__": {"c": int}}),
        State,
    )
    places = [each.place for each in differences(mine, theirs)]
    assert places == ["action.a", "action.b", "observation.c"]
    assert first_difference(mine, mine) is None


def test_whether_unknown_fields_are_forbidden_is_told() -> None:
    class Lax(Action):
        model_config = ConfigDict(extra="allow")

    (found,) = differences(action(), contract_of(Lax, None, None))
    assert found.sentence() == (
        "action: unknown fields are forbidden here, unknown fields are accepted on the server"
    )


def test_an_opaque_part_or_field_is_equal_to_anything() -> None:
    class Seen(Observation):
        grid: np.ndarray

    assert differences(contract_of(None, Seen, None), observation(grid=list[int])) == []
    assert differences(contract_of(Action, None, None), observation(grid=int)) == []
    assert differences(Contract({}), contract_of(Action, Seen, State)) == []


def test_a_type_within_itself_is_compared_once() -> None:
    class Node(Action):
        next: Node | None = None
        size: int = 0

    class Knot(Action):
        next: Knot | None = None
        size: str = ""

    found = differences(contract_of(Node, None, None), contract_of(Knot, None, None))
    assert "action.size" in {each.place for each in found}
