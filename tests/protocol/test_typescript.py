from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from openenv import Action, Array, Observation, State
from openenv.protocol.contract import Contract
from openenv.protocol.json_schema import schema_of
from openenv.protocol.typescript import typescript_of


class Color(Enum):
    RED = "red"
    DEEP_BLUE = 'deep "blue"'


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Spot(NamedTuple):
    x: int
    y: int | None = None


class Size(TypedDict):
    width: int
    height: NotRequired[int]


class Walk(BaseModel):
    kind: Literal["walk"] = "walk"
    to: Spot


class Wait(BaseModel):
    kind: Literal["wait"] = "wait"


class Tree(BaseModel):
    """A tree."""

    value: int = 0
    branches: list[Tree] = Field(default_factory=list)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int


CASES: list[tuple[Any, str]] = [
    (str, "string"),
    (int | float | None, "number | null"),
    (bool, "boolean"),
    (Any, "unknown"),
    (object, "unknown"),
    (Literal["a", 1, None, True], '"a" | 1 | null | true'),
    (Color, "Color"),
    (list[Color | None], "(Color | null)[]"),
    (set[int], "number[]"),
    (list[list[float]], "number[][]"),
    (list, "unknown[]"),
    (tuple[int, str], "[number, string]"),
    (tuple[int, ...], "number[]"),
    (tuple[()], "[]"),
    (Spot, "Spot"),
    (dict, "{ [name: string]: unknown }"),
    (dict[int, list[Size]], "{ [name: string]: Size[] }"),
    (dict[Literal["a", "b"], int], '{ [name in "a" | "b"]?: number }'),
    (dict[Level, int], "{ [name in Level]?: number }"),
    (dict[Annotated[str, Field(pattern="^a")], int], "{ [name: string]: number }"),
    (date | datetime | UUID, "string"),
    (Decimal, "number | string"),
    (bytes, "Uint8Array"),
    (Annotated[Walk | Wait, Field(discriminator="kind")], "Walk | Wait"),
    (Annotated[np.ndarray, Array("float32", (None, 3))], "number[][]"),
    (Tree, "Tree"),
]


def module(**schemas: Any) -> str:
    contract = Contract(schemas)
    return typescript_of(schemas, contract.hash)


def declaration(text: str, name: str) -> str:
    """The lines of a declaration, after its comment."""
    begin = re.search(rf"^export \w+ {name} ", text, re.MULTILINE)
    assert begin is not None, text
    return text[begin.start() :].partition("\n\n")[0].strip()


@pytest.mark.parametrize(("kind", "written"), CASES, ids=[written for _, written in CASES])
def test_what_pydantic_declares_has_a_type(kind: Any, written: str) -> None:
    made = create_model("Made", field=(kind, ...))
    assert declaration(module(action=schema_of(made)), "Made") == f"export interface Made {{\n  field: {written};\n}}"


def test_an_action_may_leave_out_what_has_a_default_and_results_have_it() -> None:
    class Do(Action):
        tree: Tree

    class See(Observation):
        """What is seen: */ no end."""

        tree: Tree
        note: str | None = Field(default=None, description="First line\n\nLast */ line")

    text = module(action=schema_of(Do), observation=schema_of(See), state=schema_of(State))
    assert declaration(text, "Tree") == (
        "export interface Tree {\n  /** @default 0 */\n  value?: number;\n  branches?: Tree[];\n}"
    )
    assert declaration(text, "Tree2") == "export interface Tree2 {\n  value: number;\n  branches?: Tree2[];\n}"
    assert (
        "  tree: Tree2;\n  /**\n   * First line\n   *\n   * Last *\\/ line\n   */\n  note: string | null;\n" in text
    )
    assert "/** What is seen: *\\/ no end. */\nexport interface See {" in text
    assert "reward" not in text
    assert "done" not in text
    assert text.endswith("  action: Do;\n  observation: See;\n  state: State;\n}\n")


def test_equal_types_of_several_parts_are_declared_once() -> None:
    class Go(Action):
        to: Color

    class Seen(Observation):
        at: Color

    text = module(action=schema_of(Go), observation=schema_of(Seen))
    assert text.count("export type Color =") == 1
    assert declaration(text, "Color") == 'export type Color = "red" | "deep \\"blue\\"";'


def test_alternatives_of_an_observation_have_no_reward_either() -> None:
    class Won(Observation):
        prize: int

    class Lost(Observation):
        pass

    text = module(action=schema_of(Walk | Wait), observation=schema_of(Won | Lost), state=schema_of(Tree))
    assert declaration(text, "Action") == "export type Action = Walk | Wait;"
    assert declaration(text, "Observation") == (
        "export type Observation = { metadata?: { [name: string]: unknown }; prize: number; } | "
        "{ metadata?: { [name: string]: unknown }; };"
    )
    assert "state: Tree;" in text
    assert declaration(text, "Spot") == "export type Spot = [number, (number | null)?];"


def test_names_that_are_no_identifiers() -> None:
    odd = {
        "title": "class-of 3*x",
        "type": "object",
        "properties": {
            "a-b": {"$ref": "#/$defs/no.name"},
            "class": {"$ref": "#/$defs/Contract"},
            "1": {"$ref": "#/$defs/größe"},
        },
        "required": ["a-b", "class", "1"],
        "$defs": {
            "no.name": {"type": "string"},
            "Contract": {"const": {"a": [1]}},
            "größe": {"$ref": "#/$defs/→"},
            "→": {"type": ["integer", "null"]},
        },
    }
    text = module(action=odd)
    assert declaration(text, "Class_of_3_x") == (
        'export interface Class_of_3_x {\n  "a-b": No_name;\n  class: Contract2;\n  "1": Gr_e;\n}'
    )
    assert declaration(text, "Contract2") == 'export type Contract2 = {"a": [1]};'
    assert declaration(text, "Gr_e") == "export type Gr_e = Type;"
    assert declaration(text, "Type") == "export type Type = number | null;"


def test_schemas_that_others_write() -> None:
    text = module(
        action={
            "type": "object",
            "properties": {
                "both": {"allOf": [{"type": "string"}, {"enum": ["a", "b"]}]},
                "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
                "none": {"type": "object", "additionalProperties": False},
                "inner": {"type": "object", "properties": {"x": {"type": "integer", "description": "not shown"}}},
                "never": False,
                "opaque": {"$comment": "opaque"},
                "other": {"type": "array", "items": {"type": "object", "properties": {"y": {}}}},
            },
            "patternProperties": {"^x": {}},
        },
        observation={"type": "object"},
        state={"$comment": "opaque"},
    )
    assert declaration(text, "Action").splitlines()[1:-1] == [
        '  both?: (string) & ("a" | "b");',
        "  pair?: [string?, ...number[]];",
        "  none?: Record<string, never>;",
        "  inner?: { x?: number; };",
        "  never?: never;",
        "  opaque?: unknown;",
        "  other?: ({ y?: unknown; })[];",
        "  [name: string]: unknown;",
    ]
    assert declaration(text, "Observation") == "export type Observation = { [name: string]: unknown };"
    assert "  state: Record<string, unknown>;" in text
    assert "  action: unknown;\n" in module()


def test_unknown_fields_are_allowed_where_the_model_allows_them() -> None:
    assert declaration(module(action=schema_of(Open)), "Open").endswith(
        "  known: number;\n  [name: string]: unknown;\n}"
    )
