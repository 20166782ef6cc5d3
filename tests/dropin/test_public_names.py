"""Every public name of the released package is here as it is there, or stands in public_names.toml with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .comparison import differences
from .installation import HERE, PEER_PYTHON, PROJECT
from .peer_scripts.public_names import facts

DATA = HERE / "public_names.toml"
READER = HERE / "peer_scripts/public_names.py"
DOCUMENT = PROJECT / "docs/existing-code.md"
MODULE_IS_MISSING = ": the module is missing"
LIMIT_S = 120.0

GROUPS: list[dict[str, Any]] = tomllib.loads(DATA.read_text(encoding="utf-8"))["difference"]
RECORDED = [name for group in GROUPS for name in group["names"]]


def said(*command: str | Path) -> str:
    """What a program prints, in a process of its own: reading names imports much."""
    ended = subprocess.run(
        [str(each) for each in command], cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public names of the released package, read in its own virtual environment."""
    if not PEER_PYTHON.exists():
        pytest.skip("the released package is not installed: make .venv-peer/.installed")
    skipped = [name.removesuffix(MODULE_IS_MISSING) for name in RECORDED if name.endswith(MODULE_IS_MISSING)]
    path = tmp_path_factory.mktemp("names") / "survey.json"
    path.write_text(said(PEER_PYTHON, READER, *skipped), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found(survey: Path) -> list[str]:
    packages = said(PEER_PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    listed: list[str] = json.loads(
        said(sys.executable, "-W", "ignore", "-m", "tests.dropin.comparison", survey, packages)
    )
    return listed


@pytest.mark.slow
@pytest.mark.real
def test_nothing_differs_that_is_not_recorded(found: list[str]) -> None:
    assert sorted(set(found) - set(RECORDED)) == [], f"make it equal, or record it with its reason in {DATA.name}"


@pytest.mark.slow
@pytest.mark.real
def test_what_is_recorded_differs(found: list[str]) -> None:
    assert sorted(set(RECORDED) - set(found)) == [], f"these differ no more: remove them from {DATA.name}"


@pytest.mark.slow
@pytest.mark.real
def test_all_of_the_released_package_was_read(survey: Path) -> None:
    read = json.loads(survey.read_text(encoding="utf-8"))
    assert len(read["modules"]) > 100
    assert len(read["objects"]) > 150
    assert [name for name, entry in read["modules"].items() if "error" in entry] == []


def test_each_difference_is_recorded_once_and_with_its_reason() -> None:
    assert [name for name, times in Counter(RECORDED).items() if times > 1] == []
    for group in GROUPS:
        assert group["why"].endswith("."), group
        assert not group["what"].endswith("."), group
        assert group["names"] == sorted(group["names"]), group


def test_the_table_in_the_documentation_is_that_of_the_data() -> None:
    rows = [f"| {group['what']} | {group['why']} |" for group in GROUPS]
    table = "\n".join(["| what differs | why |", "|---|---|", *rows])
    assert table in DOCUMENT.read_text(encoding="utf-8"), f"the table in {DOCUMENT.name} must be:\n{table}"


# What the comparison finds

THERE = """
import enum
from dataclasses import dataclass
from pydantic import BaseModel, Field
CONSTANT = 5

class Colour(enum.Enum):
    RED = 1

class Model(BaseModel):
    count: int = Field(default=0, ge=0)

class Base:
    def walk(self, far: int, *, fast: bool = False) -> None: ...

class Derived(Base):
    size = 3
    def __init__(self, first, second=2):
        self.first = first
    @property
    def name(self): return ""
    async def later(self): ...

def function(a, b=1, **more): ...
"""


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Compares a module with the source above to one with another source, in the place of a module of the package."""

    def imported(source: str, name: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        spec = spec_from_file_location("openenv.here", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "openenv.here", module)
        spec.loader.exec_module(module)
        return module

    def compare(source: str) -> list[str]:
        there = imported(THERE, "there")
        homes = {
            name: f"openenv.here.{name}" for name in ("Base", "CONSTANT", "Colour", "Derived", "Model", "function")
        }
        objects = {home: facts(getattr(there, name)) for name, home in homes.items()}
        imported(source, "here")
        found = differences({"modules": {"openenv.here": {"names": homes}}, "objects": objects})
        return [line.removeprefix("openenv.here.") for line in found]

    return compare


@pytest.mark.parametrize(
    ("there", "here", "difference"),
    [
        ("RED = 1", "RED = 2", "Colour.RED: value 1 there, 2 here"),
        ("enum.Enum", "enum.IntEnum", "Colour.str(): value Colour.RED there, 1 here"),
        ("RED = 1", "GREEN = 1", "Colour.RED: missing"),
        ("CONSTANT = 5", "CONSTANT = 6", "CONSTANT: value 5 there, 6 here"),
        ("CONSTANT = 5", "", "CONSTANT: missing"),
        ("default=0", "default=1", "Model.count: default 0 there, 1 here"),
        ("ge=0", "ge=1", "Model.count: schema {'minimum': 0, 'type': 'integer'} there, "),
        ("far: int,", "near: int,", "Base.walk(far): missing"),
        ("far: int,", "far: int, wide: int,", "Base.walk(wide): required here, unknown there"),
        ("fast: bool = False", "fast: bool = True", "Base.walk(fast): default False there, True here"),
        ("second=2", "third=3, second=2", "Derived(second): argument 1 there, 2 here"),
        ("second=2", "*, second=2", "Derived(second): positional or keyword there, keyword-only here"),
        ("self.first = first", "pass", "Derived.first: missing"),
        ("size = 3", "size = 4", "Derived.size: value 3 there, 4 here"),
        ("async def later", "def later", "Derived.later: asynchronous True there, False here"),
        ("@property\n", "\n", "Derived.name: property there, function here"),
        ("class Derived(Base)", "class Derived", "Derived: no Base here"),
        ("**more", "*more", "function(more): no variadic keyword parameters here"),
        ("def function(a, b=1, **more): ...", "function = 3", "function: function there, value here"),
    ],
)
def test_the_comparison_finds(compared: Callable[[str], list[str]], there: str, here: str, difference: str) -> None:
    assert there in THERE
    assert difference in "\n".join(compared(THERE.replace(there, here)))


def test_ours_may_have_more(compared: Callable[[str], list[str]]) -> None:
    more = THERE.replace("far: int,", "far: int = 1, wide: int = 2,").replace("size = 3", "size = 3; weight = 4")
    assert compared(more) == []
