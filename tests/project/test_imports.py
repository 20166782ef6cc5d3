from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.errors import ConcurrencyConfigurationError, ImportFailed, UsageError
from openenv.project import attribute_of, import_module

from ..modules import forget


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which modules are found; they are forgotten after the test."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    (tmp_path / "maze").mkdir()
    (tmp_path / "maze" / "__init__.py").touch()
    yield tmp_path
    forget(tmp_path)


def failure(module: str) -> ImportFailed:
    with pytest.raises(ImportFailed) as caught:
        import_module(module, "here")
    assert caught.value.message.startswith(f"here: importing {module} failed: ")
    return caught.value


def test_a_module_is_imported(place: Path) -> None:
    (place / "maze" / "models.py").write_text("class Inner:\n    size = 3\n")
    module = import_module("maze.models", "here")
    assert attribute_of(module, "Inner.size", "here") == 3
    with pytest.raises(UsageError, match=r"here: module maze\.models has no 'Inner\.width'"):
        attribute_of(module, "Inner.width", "here")


@pytest.mark.parametrize("name", ["unheard_of", "maze.unheard_of"])
def test_a_module_that_is_not_there(name: str) -> None:
    with pytest.raises(UsageError, match=f"here: no module {name!r}") as caught:
        import_module(name, "here")
    assert not isinstance(caught.value, ImportFailed)


def test_a_package_that_is_not_installed_names_the_file_that_wants_it(place: Path) -> None:
    (place / "maze" / "models.py").write_text("x = 1\nimport unheard_of.inner\n")
    (place / "maze" / "client.py").write_text("from .models import x\n")
    found = failure("maze.client")
    assert f"{place / 'maze' / 'models.py'}, line 2 (`import unheard_of.inner`)" in found.message
    assert "install unheard_of" in found.message
    assert isinstance(found, ImportError)
    assert isinstance(found.__cause__, ModuleNotFoundError)


def test_a_module_that_ends_the_program_is_one_that_cannot_be_imported(place: Path) -> None:
    (place / "maze" / "client.py").write_text("import sys\nsys.exit('no display')\n")
    assert "SystemExit: no display in " in failure("maze.client").message


def test_the_first_failure_is_told_where_a_second_import_hides_it(place: Path) -> None:
    (place / "maze" / "models.py").write_text("import unheard_of\n")
    (place / "maze" / "client.py").write_text(
        "try:\n    from .models import Move\nexcept ImportError:\n    from models import Move\n"
    )
    message = failure("maze.client").message
    assert f"{place / 'maze' / 'models.py'}, line 1 (`import unheard_of`): install unheard_of" in message
    assert message.endswith("its fallback then failed with: No module named 'models'")


def test_a_relative_import_that_could_not_work_is_no_cause(place: Path) -> None:
    (place / "models.py").write_text("import unheard_of\n")
    (place / "client.py").write_text(
        "try:\n    from .models import Move\nexcept ImportError:\n    from models import Move\n"
    )
    message = failure("client").message
    assert f"{place / 'models.py'}, line 1" in message
    assert "relative import" not in message


def test_a_name_that_a_module_does_not_have(place: Path) -> None:
    (place / "maze" / "client.py").write_text("from json import nothing_of_the_kind\n")
    assert "cannot import name 'nothing_of_the_kind'" in failure("maze.client").message


def test_a_module_that_is_no_python(place: Path) -> None:
    (place / "maze" / "client.py").write_text("x = 1\nclass = 2\n")
    assert f"in {place / 'maze' / 'client.py'}, line 2: correct it" in failure("maze.client").message


def test_a_module_that_raises(place: Path) -> None:
    (place / "maze" / "client.py").write_text("def load():\n    raise LookupError('no data')\n\n\nload()\n")
    message = failure("maze.client").message
    assert f"LookupError: no data in {place / 'maze' / 'client.py'}, line 2" in message


def test_what_our_own_calls_raise_is_left_as_it_is(place: Path) -> None:
    (place / "maze" / "app.py").write_text(
        "from openenv.errors import ConcurrencyConfigurationError\nraise ConcurrencyConfigurationError('Maze', 2)\n"
    )
    with pytest.raises(ConcurrencyConfigurationError):
        import_module("maze.app", "here")


@pytest.mark.parametrize("name", ["", ".", "a..b", ".a"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="is not a module name"):
        import_module(name, "here")


def test_what_a_module_says_in_several_lines_is_one_line(place: Path) -> None:
    (place / "maze" / "models.py").write_text("raise ValueError('a\\nb')\n")
    assert ": ValueError: a b in " in failure("maze.models").message
    (place / "maze" / "client.py").write_bytes(b"a = 1\0\n")
    assert failure("maze.client").message.endswith("null bytes: correct it")
