from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from openenv.protocol.contract import contract_of, first_misfit
from openenv.types import Action, Observation, State

from .models import action, observation, state


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class WordyCat(BaseModel):
    kind: Literal["cat"]
    lives: str = "nine"


class Dog(BaseModel):
    kind: Literal["dog"]


class Point(BaseModel, extra="forbid"):
    x: int
    y: int = 0


Positive = Annotated[int, Field(gt=0)]
FITS = [
    ({"n": int}, {"n": float}),
    ({"n": bool}, {"n": int}),
    ({"n": int}, {"n": int | None}),
    ({"n": (int, 0)}, {"n": int}),
    ({"n": int}, {"n": (int, 0)}),
    ({"n": Literal["a"]}, {"n": Literal["a", "b"]}),
    ({"n": Literal["a", "b"]}, {"n": str}),
    ({"n": Literal[1, 2]}, {"n": float}),
    ({"n": Positive}, {"n": int}),
    ({"n": Positive}, {"n": Annotated[int, Field(ge=0)]}),
    ({"n": Cat}, {"n": Dog | Cat}),
    ({"n": list[Cat]}, {"n": list[Cat | Dog]}),
    ({"n": Any}, {"n": int}),
    ({"n": int}, {"n": Any}),
    ({"n": np.ndarray}, {"n": list[float]}),
    ({"n": dict[str, Any]}, {"n": Cat}),
    ({"n": datetime.datetime}, {"n": str}),
    ({"n": Annotated[str, Field(pattern="a+")]}, {"n": Annotated[str, Field(pattern="a*")]}),
    ({"n": set[int]}, {"n": list[int]}),
    ({"n": tuple[int, str]}, {"n": tuple[float, str]}),
    ({"n": tuple[int, int]}, {"n": list[float]}),
    ({"n": Point}, {"n": dict[str, float]}),
]
MISFITS = [
    ({"n": int}, {"n": str}, "n", "integer", "string"),
    ({"n": float}, {"n": int}, "n", "number", "integer"),
    ({"n": int | None}, {"n": int}, "n", "null", "integer"),
    ({"n": Literal["a", "c"]}, {"n": Literal["a", "b"]}, "n", "one of 'a', 'c'", "one of 'a', 'b'"),
    ({"n": str}, {"n": Literal["a", "b"]}, "n", "string", "one of 'a', 'b'"),
    ({"n": int}, {"n": Positive}, "n", "integer", "integer > 0"),
    ({"n": Annotated[int, Field(ge=0)]}, {"n": Positive}, "n", "integer >= 0", "integer > 0"),
    ({"n": Annotated[int, Field(le=9)]}, {"n": Annotated[int, Field(le=5)]}, "n", "integer <= 9", "integer <= 5"),
    ({"n": int, "m": (int, 0)}, {"n": int}, "m", "integer", "not known"),
    ({"n": int}, {"n": int, "m": str}, "m", "not sent", "string, required"),
    ({"n": list[int]}, {"n": list[str]}, "n[]", "integer", "string"),
    ({"n": list[int]}, {"n": dict[str, int]}, "n", "list of integer", "object of integer"),
    ({"n": dict[str, int]}, {"n": dict[str, str]}, "n[*]", "integer", "string"),
    ({"n": Cat | Dog}, {"n": Cat}, "n.kind", "'dog'", "'cat'"),
    ({"n": list[Dog | Cat]}, {"n": list[WordyCat | Dog]}, "n[].lives", "integer", "string"),
    ({"n": tuple[int, str]}, {"n": tuple[int, int]}, "n[1]", "string", "integer"),
    ({"n": tuple[int, str]}, {"n": list[int]}, "n[1]", "string", "integer"),
    ({"n": Point}, {"n": dict[str, str]}, "n.x", "integer", "string"),
]


@pytest.mark.parametrize(("sent", "taken"), FITS)
def test_what_is_taken_may_be_wider_than_what_is_sent(sent: Any, taken: Any) -> None:
    assert first_misfit(action(**sent), action(**taken)) is None
    assert first_misfit(observation(**taken), observation(**sent)) is None


@pytest.mark.parametrize(("sent", "taken", "place", "as_sent", "as_taken"), MISFITS)
def test_what_is_sent_must_be_taken(sent: Any, taken: Any, place: str, as_sent: str, as_taken: str) -> None:
    assert first_misfit(action(**sent), action(**taken)) == (f"action.{place}", as_sent, as_taken)
    assert first_misfit(observation(**taken), observation(**sent)) == (f"observation.{place}", as_taken, as_sent)


def test_a_sentence_names_the_field_and_both_sides() -> None:
    found = first_misfit(observation(board=int), observation(board=str))
    assert found is not None
    assert found.sentence() == "observation.board: integer here, string on the server"


def test_an_optional_field_that_only_the_client_has_is_no_misfit() -> None:
    assert first_misfit(observation(old=int, new=(int, 0)), observation(old=int)) is None


def test_a_field_that_only_the_server_sends_is_one_where_unknown_fields_are_forbidden() -> None:
    class Lax(BaseModel):
        old: int

    assert first_misfit(observation(old=int), observation(old=int, new=(int, 0))) is not None
    assert first_misfit(contract_of(None, Lax, None), observation(old=int, new=(int, 0))) is None


def test_a_state_may_have_fields_that_the_server_did_not_declare() -> None:
    assert first_misfit(state(board=str), state()) is None
    assert first_misfit(state(), state(board=str)) is None
    assert first_misfit(state(board=str), state(board=int)) is not None


def test_a_base_class_of_the_server_stands_for_whatever_it_sends() -> None:
    assert first_misfit(observation(board=str), contract_of(None, Observation, None)) is None


def test_reward_and_done_are_sent_beside_any_observation() -> None:
    class Bare(BaseModel):
        text: str

    class Whole(Bare):
        done: bool
        reward: float | None

    class Strict(Bare, extra="forbid"):
        pass

    server = contract_of(None, Bare, None)
    assert first_misfit(contract_of(None, Bare, None), server) is None
    assert first_misfit(contract_of(None, Whole, None), server) is None
    found = first_misfit(contract_of(None, Strict, None), server)
    assert found is not None
    assert found.place == "observation.done"


def test_metadata_of_an_action_is_only_sent_if_there_is_some() -> None:
    class Bare(BaseModel, extra="forbid"):
        text: str

    assert first_misfit(action(text=str), contract_of(Bare, None, None)) is None


def test_a_type_within_itself_fits_itself() -> None:
    class Node(Action):
        next: Node | None = None

    class Knot(Action):
        next: Knot | None = None
        size: int = 0

    node, knot = contract_of(Node, Observation, State), contract_of(Knot, Observation, State)
    assert first_misfit(node, knot) is None
    assert first_misfit(knot, node) == ("action.size", "integer", "not known")


def test_parts_that_one_side_does_not_declare_are_passed_over() -> None:
    assert first_misfit(contract_of(None, None, None), contract_of(Action, Observation, State)) is None
    assert first_misfit(contract_of(Action, Observation, State), contract_of(None, None, None)) is None
