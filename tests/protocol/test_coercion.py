"""Values in a lesser form than was declared, and what they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType, TypedDict

from openenv.errors import InvalidAction
from openenv.protocol.coercion import coercer_of
from openenv.protocol.server import ServerProtocol
from openenv.types import Action

MARK = {"$bytes": "/w=="}
Raw = TypeAliasType("Raw", bytes)


class Node(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    pixels: np.ndarray = Field(alias="px")
    children: list[Node] = []


class Plain(BaseModel):
    name: str
    next: Plain | None = None


@dataclass
class Card:
    picture: bytes
    name: str = ""


class Sizes(TypedDict):
    data: NotRequired[bytes]


def lifted(declared: Any, value: Any) -> Any:
    lift = coercer_of(declared)
    assert lift is not None
    return lift(value)


@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        (bytes, MARK, b"\xff"),
        (Raw, MARK, b"\xff"),
        (Annotated[bytes, Field(min_length=1)], MARK, b"\xff"),
        (str | bytes | None, MARK, b"\xff"),
        (list[bytes], ["a", MARK], ["a", b"\xff"]),
        (Sequence[bytes], [MARK], [b"\xff"]),
        (frozenset[bytes], [MARK], [b"\xff"]),
        (tuple[int, bytes], [1, MARK], [1, b"\xff"]),
        (tuple[bytes, ...], [MARK, MARK], [b"\xff", b"\xff"]),
        (dict[str, list[bytes]], {"a": [MARK], "b": []}, {"a": [b"\xff"], "b": []}),
        (Card, {"picture": MARK, "name": "x"}, {"picture": b"\xff", "name": "x"}),
        (Sizes, {"data": MARK}, {"data": b"\xff"}),
    ],
)
def test_marked_bytes_become_bytes_where_some_are_declared(declared: Any, value: Any, expected: Any) -> None:
    assert lifted(declared, value) == expected


@pytest.mark.parametrize(
    "value", [{"$bytes": 1}, {"$bytes": "not base64"}, {"$bytes": "", "more": 1}, {}, "text", 3, None]
)
def test_what_is_no_mark_stays_what_it_is(value: Any) -> None:
    assert lifted(list[bytes], [value])[0] is value
    assert lifted(bytes, value) is value


def test_an_array_takes_the_element_type_that_is_declared() -> None:
    assert lifted(NDArray[np.uint8], [[1, 2]]).dtype == np.uint8
    assert lifted(NDArray[np.floating[Any]], [1]).dtype == np.int64  # no type that an array could have
    assert lifted(np.ndarray, [True, False]).dtype == np.bool_
    assert lifted(np.ndarray, 3).shape == ()
    assert lifted(np.int16, 3).dtype == np.int16


@pytest.mark.parametrize("value", [[1, [2]], ["a"], [None], "abc", {}, None, [300]])
def test_what_is_no_array_stays_what_it_is(value: Any) -> None:
    assert lifted(NDArray[np.uint8], value) is value


def test_a_model_that_holds_its_own_like_is_lifted_all_the_way_down() -> None:
    value = {"px": [1], "children": [{"px": [2], "children": [{"px": 3}]}]}
    tree = Node.model_validate(lifted(Node, value))
    assert tree.children[0].children[0].pixels == 3


@pytest.mark.parametrize("declared", [int, str | None, list[str], dict[str, int], Any, "Node"])
def test_what_json_can_say_needs_no_lift(declared: Any) -> None:
    assert coercer_of(declared) is None


class Show(Action):
    pixels: np.ndarray


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"step","data":{"pixels":[1]},"more":1}',
        b'{"type":"step","data":{"pixels":[1],"more":1}}',
        b'{"type":"step","data":{"pixels":[[1],[2,3]]}}',
        b'{"type":"step","data":[1]}',
        b'{"type":"step"}',
        b'{"type":"reset","data":[1]}',
    ],
)
def test_a_frame_that_is_wrong_in_another_way_is_still_refused(frame: bytes) -> None:
    with pytest.raises(InvalidAction):
        ServerProtocol(Show).receive(frame)
