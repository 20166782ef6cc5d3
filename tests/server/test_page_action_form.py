from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import numpy
import pytest
from pydantic import Field

from openenv.server.page.gradio import action_fields
from openenv.types import Action


class Colour(Enum):
    RED = "r"
    GREEN = "g"


class Move(Action):
    count: int = Field(description="how far", ge=0, le=5)
    text: str = Field(default="hi", min_length=1, max_length=9, pattern="^h")
    flag: bool = False
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    tokens: list[int] = []
    names: list[str] = []
    either: int | None = None


FIELDS = {field["name"]: field for field in action_fields(Move)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("count", "number"),
        ("text", "text"),
        ("flag", "checkbox"),
        ("kind", "select"),
        ("colour", "select"),
        ("tokens", "tensor"),
        ("names", "text"),
        ("either", "text"),
    ],
)
def test_a_field_has_the_widget_of_its_type(name, kind):
    assert FIELDS[name]["type"] == kind


def test_a_field_without_a_schema_is_text():
    class Picture(Action):
        pixels: numpy.ndarray
        title: str = ""

    assert [(field["name"], field["type"]) for field in action_fields(Picture)] == [
        ("pixels", "text"),
        ("title", "text"),
    ]


def test_metadata_is_no_field_of_the_form():
    assert list(FIELDS) == ["count", "text", "flag", "kind", "colour", "tokens", "names", "either"]


def test_what_the_class_says_of_a_field():
    count, text = FIELDS["count"], FIELDS["text"]
    assert (count["required"], count["description"], count["help_text"]) == (True, "how far", "how far")
    assert (count["min_value"], count["max_value"], count["default_value"]) == (0, 5, None)
    assert (text["required"], text["default_value"], text["placeholder"]) == (False, "hi", "Enter text...")
    assert (text["min_length"], text["max_length"], text["pattern"]) == (1, 9, "^h")
    assert FIELDS["kind"]["choices"] == ["a", "b"]
    assert (FIELDS["colour"]["choices"], FIELDS["colour"]["default_value"]) == (["r", "g"], "r")
    assert FIELDS["tokens"]["choices"] is None


@pytest.mark.parametrize("kind", [Action, dict[str, Any], int])
def test_what_has_no_fields_gives_none(kind):
    assert action_fields(kind) == []
