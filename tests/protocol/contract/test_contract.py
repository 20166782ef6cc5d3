from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from openenv.protocol.contract import Contract, contract_of, differences, first_difference
from openenv.types import Action, Observation, State

from .models import action, observation

MODELS = '''
from __future__ import annotations
from typing import Literal
from pydantic import BaseModel, Field
from openenv.types import Action, Observation, State

class Place(BaseModel):
    """A place."""
    row: int = Field(ge=0, description="from the top")
    kind: Literal["wall", "door"] = "wall"
    near: list[Place] = []

class Move(Action):
    to: Place
    speed: float = Field(default=1.0, gt=0)

class Seen(Observation):
    places: dict[str, Place]
    last: Place | None = None
'''


def loaded(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def test_models_under_two_module_paths_are_one_contract(tmp_path: Path) -> None:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    one, other = loaded(path, "my_env.models"), loaded(path, "models")
    first, second = (contract_of(module.Move, module.Seen, State) for module in (one, other))
    assert first.hash == second.hash
    assert first_difference(first, second) is None


def test_the_hash_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    here = loaded(tmp_path / "models.py", "models_here")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import models; "
        "from openenv.protocol.contract import contract_of; from openenv.types import State; "
        "print(contract_of(models.Move, models.Seen, State).hash)"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert there.stdout.strip() == contract_of(here.Move, here.Seen, State).hash


def test_words_defaults_names_and_order_do_not_count() -> None:
    class Cell(BaseModel):
        """One."""

        row: int
        note: str = Field(default="a", title="Note", description="words", examples=["x"], deprecated=True)

    class First(Action):
        """First."""

        cell: Cell
        how: Literal["a", "b"] = "a"
        many: int | str | None = None

    class Zelle(BaseModel):
        note: str = "b"
        row: int

    class Second(Action):
        many: str | int | None = 3
        how: Literal["b", "a"] = Field(default="b", json_schema_extra={"widget": "radio"})
        cell: Zelle

    assert contract_of(First, None, None).hash == contract_of(Second, None, None).hash


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"n": int}, {"n": str}),
        ({"n": int}, {"n": (int, 0)}),
        ({"n": int}, {"m": int}),
        ({"n": int}, {"n": int, "m": (int, 0)}),
        ({"n": Annotated[int, Field(ge=0)]}, {"n": int}),
        ({"n": Annotated[int, Field(ge=0)]}, {"n": Annotated[int, Field(gt=0)]}),
        ({"n": Literal["a"]}, {"n": Literal["a", "b"]}),
        ({"n": int}, {"n": int | None}),
        ({"n": list[int]}, {"n": list[str]}),
        ({"n": dict[str, int]}, {"n": dict[str, str]}),
        ({"n": tuple[int, str]}, {"n": tuple[str, int]}),
        ({"n": Annotated[str, Field(max_length=3)]}, {"n": str}),
        ({"n": Annotated[str, Field(pattern="a")]}, {"n": str}),
    ],
)
def test_what_decides_about_values_counts(mine: Any, theirs: Any) -> None:
    assert action(**mine).hash != action(**theirs).hash


def test_whether_unknown_fields_are_forbidden_counts() -> None:
    class Open(Action):
        model_config = ConfigDict(extra="allow")

    class Ignoring(Action):
        model_config = ConfigDict(extra="ignore")

    assert len({contract_of(kind, None, None).hash for kind in (Action, Open, Ignoring)}) == 3


def test_types_of_reward_done_and_metadata_do_not_count() -> None:
    class Own(Observation):
        reward: float | None = None
        metadata: dict[str, int] = {}

    assert contract_of(None, Own, None).hash == contract_of(None, Observation, None).hash
    assert observation().hashes["observation"] == contract_of(None, Observation, None).hashes["observation"]


def test_how_versions_of_pydantic_write_the_same_is_the_same() -> None:
    older = {
        "type": "object",
        "title": "M",
        "properties": {
            "kind": {"const": "a", "enum": ["a"], "type": "string", "title": "Kind"},
            "place": {"allOf": [{"$ref": "#/$defs/Place"}], "default": {}},
            "free": {"title": "Free", "type": "object"},
            "some": {"type": "array", "items": {}},
        },
        "required": ["kind", "free"],
        "$defs": {"Place": {"type": "object", "properties": {"row": {"type": "number", "minimum": 0.0}}}},
    }
    newer = {
        "properties": {
            "kind": {"const": "a", "type": "string"},
            "place": {"$ref": "#/$defs/models__Place"},
            "free": {"additionalProperties": True, "type": "object"},
            "some": {"type": "array"},
        },
        "required": ["free", "kind"],
        "type": "object",
        "$defs": {"models__Place": {"properties": {"row": {"minimum": 0, "type": "number"}}, "type": "object"}},
    }
    assert Contract({"action": older}).hash == Contract({"action": newer}).hash
    assert first_difference(Contract({"action": older}), Contract({"action": newer})) is None


def test_a_list_of_types_is_that_of_alternatives() -> None:
    short = {"properties": {"n": {"type": ["integer", "null"], "minimum": 0}}}
    long = {"properties": {"n": {"anyOf": [{"type": "null", "minimum": 0}, {"type": "integer", "minimum": 0}]}}}
    assert Contract({"action": short}).hash == Contract({"action": long}).hash


def test_a_recursive_type_ends() -> None:
    class Node(Action):
        next: Node | None = None

    class Knot(Action):
        next: Knot | None = None

    assert contract_of(Node, None, None).hash == contract_of(Knot, None, None).hash


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/No"},
        {"properties": {"inner": {"items": {"$ref": "#/$defs/No"}}}},
        {"$defs": []},
        {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"},
        {"properties": []},
        {"required": 3},
        {"enum": "ab"},
        {"items": 7},
        {"anyOf": []},
        [],
        "text",
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"schema|defs|properties|required|enum|alternatives|defined|map"):
        Contract({"action": schema})


def test_a_field_may_be_called_like_a_word_of_schemas() -> None:
    one, other = (
        Contract({"action": {"properties": {name: {"type": kind} for name in ("$ref", "anyOf")}}})
        for kind in ("string", "integer")
    )
    assert one.hash != other.hash
    assert [difference.place for difference in differences(one, other)] == ["action.$ref", "action.anyOf"]


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="deeply"):
        Contract({"action": schema})


def test_a_schema_whose_references_multiply_is_read_in_time() -> None:
    definitions = {
        f"D{level}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/D{level + 1}"} for side in "ab"}}
        for level in range(60)
    }
    definitions["D60"] = {"type": "integer"}
    contracts = [Contract({"action": {"$ref": "#/$defs/D0", "$defs": definitions}}) for _ in range(2)]
    assert contracts[0].hash == contracts[1].hash
    assert first_difference(*contracts) is None
