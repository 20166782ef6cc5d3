"""JSON Schemas as spaces: what the types of any environment become, and what they cannot."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from gymnasium import spaces
from pydantic import BaseModel, Field, create_model

from openenv.adapters.gymnasium.description import KEYWORD, describe
from openenv.adapters.gymnasium.schema import FreeText, Role, space_of_fields
from openenv.arrays import Array
from openenv.errors import OpenEnvError, UnmappableSpace
from openenv.types import Action, Observation


class Place(BaseModel):
    row: int = Field(ge=0, le=3)
    open: bool


class Chain(BaseModel):
    next: Chain | None = None


def schema_of(base: type[BaseModel], **fields: Any) -> dict[str, Any]:
    return create_model(
        "Made", __base__=base, **{name: (kind, ...) for name, kind in fields.items()}
    ).model_json_schema()


def mapped(kind: Any, role: Role = "observation") -> Any:
    return space_of_fields(schema_of(Observation if role == "observation" else Action, it=kind), role)


CASES: dict[str, tuple[Any, spaces.Space[Any], Any, Any]] = {
    "bounded integer": (Annotated[int, Field(ge=-1, lt=3)], spaces.Discrete(4, start=-1), 2, 2),
    "integer": (int, spaces.Box(-np.inf, np.inf, (1,), np.int64), 5, np.array([5])),
    "natural": (Annotated[int, Field(ge=0)], spaces.Box(0, np.inf, (1,), np.int64), 5, np.array([5])),
    "number": (float, spaces.Box(-np.inf, np.inf, (1,), np.float64), 0.5, np.array([0.5])),
    "share": (Annotated[float, Field(ge=0, le=1)], spaces.Box(0, 1, (1,), np.float64), 1, np.array([1.0])),
    "boolean": (bool, spaces.Discrete(2), True, 1),
    "words": (Literal["left", "right"], spaces.Discrete(2), "right", 1),
    "one and true": (Literal[1, True], spaces.Discrete(2), True, 1),
    "text": (str, FreeText(), "é", "é"),
    "short text": (Annotated[str, Field(max_length=3)], FreeText(0, 3), "abc", "abc"),
    "array": (
        Annotated[np.ndarray, Array("float32", (2, 1))],
        spaces.Box(-np.inf, np.inf, (2, 1), np.float32),
        [[0.5], [2]],
        np.array([[0.5], [2]], np.float32),
    ),
    "array of bytes": (
        Annotated[np.ndarray, Array("uint8", (2,))],
        spaces.Box(0, 255, (2,), np.uint8),
        [0, 255],
        np.array([0, 255], np.uint8),
    ),
    "array of bools": (
        Annotated[np.ndarray, Array("bool", (2,))],
        spaces.Box(np.zeros(2, np.bool_), np.ones(2, np.bool_), dtype=np.bool_),
        [True, False],
        np.array([True, False]),
    ),
    "array with bounds": (
        Annotated[np.ndarray, Array("float32", (2,), low=[-1, -np.inf], high=[1, 0.5])],
        spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 0.5], np.float32)),
        [0.5, -9],
        np.array([0.5, -9], np.float32),
    ),
    "pair of numbers": (
        Annotated[list[float], Field(min_length=2, max_length=2)],
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        [0.5, 2],
        np.array([0.5, 2.0]),
    ),
    "pair of dice": (
        Annotated[list[Annotated[int, Field(ge=1, le=6)]], Field(min_length=2, max_length=2)],
        spaces.MultiDiscrete([6, 6], start=[1, 1]),
        [6, 1],
        np.array([6, 1]),
    ),
    "picture": (
        Annotated[
            list[Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=3, max_length=3)]],
            Field(min_length=2, max_length=2),
        ],
        spaces.Box(0, 1, (2, 3), np.float64),
        [[0, 0.5, 1], [1, 0, 0]],
        np.array([[0, 0.5, 1], [1, 0, 0]]),
    ),
    "list": (list[bool], spaces.Sequence(spaces.Discrete(2)), [True, False], (1, 0)),
    "tuple": (tuple[bool, str], spaces.Tuple([spaces.Discrete(2), FreeText()]), [True, "x"], (1, "x")),
    "model": (
        Place,
        spaces.Dict([("row", spaces.Discrete(4)), ("open", spaces.Discrete(2))]),
        {"row": 3, "open": False},
        {"row": 3, "open": 0},
    ),
    "optional": (
        Annotated[int, Field(ge=0, le=1)] | None,
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(1)]),
        None,
        (1, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_type_becomes_a_space_and_its_values_members(name: str) -> None:
    kind, space, value, member = CASES[name]
    found = mapped(kind)
    assert found.space == space
    decoded = found.decode({"it": value})
    assert found.space.contains(decoded)
    np.testing.assert_equal(decoded, member)
    assert found.encode(decoded) == {"it": value}


@pytest.mark.parametrize("name", CASES)
def test_samples_are_what_the_type_takes(name: str) -> None:
    kind = CASES[name][0]
    model = create_model("Made", it=(kind, ...))
    found = space_of_fields(model.model_json_schema(), "action")
    found.space.seed(1)
    for _ in range(20):
        sample = found.space.sample()
        fields = model.model_validate(found.encode(sample)).model_dump(mode="json")
        np.testing.assert_equal(found.decode(fields), sample)


def test_several_fields_are_a_dict_without_those_that_gymnasium_has_words_for() -> None:
    schema = schema_of(Observation, a=bool, b=str, terminated=bool, truncated=bool)
    found = space_of_fields(schema, "observation")
    assert list(found.space.spaces) == ["a", "b"]
    assert found.decode({"a": True, "b": "x", "metadata": {}, "terminated": False}) == {"a": 1, "b": "x"}


def test_a_description_counts_and_not_what_stands_beside_it() -> None:
    space = spaces.Box(-1, np.inf, (2, 2), np.float32)
    kind = Annotated[list[Any], Field(json_schema_extra={KEYWORD: describe(space)})]
    found = mapped(kind)
    assert found.space == space
    assert found.decode({"it": [[1, 2], [3, 4]]}).dtype == np.float32


UNMAPPABLE = {
    "anything": Any,
    "free object": dict[str, int],
    "recursive": Chain,
    "list of anything": list[Any],
    "no integer": Annotated[int, Field(ge=2, le=1)],
    "no number": Annotated[float, Field(ge=2, le=1)],
    "description of nothing": Annotated[int, Field(json_schema_extra={KEYWORD: {"kind": "Spiral"}})],
}


@pytest.mark.parametrize("name", UNMAPPABLE)
def test_what_cannot_be_mapped_is_a_typed_error(name: str) -> None:
    with pytest.raises(UnmappableSpace):
        mapped(UNMAPPABLE[name])


NO_SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": "x"},
    {"type": "array", "items": {"type": "number"}, "minItems": "a", "maxItems": "a"},
    {"type": "array", "items": {"type": "number"}, "minItems": -1, "maxItems": -1},
    {"type": {}},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"anyOf": 3},
    {"enum": 3},
    {"type": "number", "minimum": float("nan")},
    {"type": "array", "prefixItems": 5},
]


@pytest.mark.parametrize("schema", NO_SCHEMAS)
def test_what_is_no_schema_of_anything_is_a_typed_error(schema: dict[str, Any]) -> None:
    with pytest.raises(UnmappableSpace, match="give action_space="):
        space_of_fields({"properties": {"it": schema}}, "action")


def test_lists_of_lists_of_lists_come_to_an_end() -> None:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(2000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UnmappableSpace, match="give observation_space="):
        space_of_fields({"properties": {"it": schema}}, "observation")


@pytest.mark.parametrize("member", [-1, 2, 0.5, np.float64(1.5)])
def test_a_choice_of_what_is_not_there_is_none(member: Any) -> None:
    found = mapped(Literal["left", "right"], "action")
    with pytest.raises((LookupError, TypeError, ValueError)):
        found.encode(member)


@pytest.mark.parametrize("kind", [Annotated[str, Field(pattern="^a+$")], Annotated[float, Field(multiple_of=0.5)]])
def test_what_only_narrows_is_seen_but_not_chosen(kind: Any) -> None:
    mapped(kind)
    with pytest.raises(UnmappableSpace, match=r"no Gymnasium space can be made of action\.it: .* give action_space="):
        mapped(kind, "action")


def test_an_error_names_the_place_and_what_to_give() -> None:
    class Inner(BaseModel):
        notes: dict[str, Any]

    with pytest.raises(UnmappableSpace, match=r"observation\.it\[\]\.notes: .*decode_observation=") as caught:
        mapped(list[Inner])
    assert isinstance(caught.value, OpenEnvError)


def test_an_action_without_fields_is_none() -> None:
    with pytest.raises(UnmappableSpace, match="encode_action"):
        space_of_fields(Action.model_json_schema(), "action")


@pytest.mark.parametrize("value", [None, "x", [1.0], {}, [[1.0, 2.0]]])
def test_a_value_of_another_shape_is_no_member(value: Any) -> None:
    found = mapped(Annotated[list[float], Field(min_length=3, max_length=3)])
    with pytest.raises((LookupError, TypeError, ValueError)):
        found.decode({"it": value})
