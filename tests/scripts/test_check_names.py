"""scripts/check_names.py finds names that stand for two things, and names that are no nouns of the field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check_names.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose names break no rule."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server/v2.py").write_text("class V2Connection:\n    pass\n")
    (tmp_path / "session.py").write_text("class Session:\n    class Limits:\n        pass\n")
    return tmp_path


def findings(package: Path) -> list[str]:
    run = subprocess.run([sys.executable, SCRIPT, package], capture_output=True, text=True, check=False)
    assert run.returncode == bool(run.stderr)
    return run.stderr.splitlines()


def test_names_of_the_field_that_stand_once_are_no_finding(package: Path) -> None:
    assert findings(package) == []


def test_a_class_name_in_two_modules(package: Path) -> None:
    (package / "server/limits.py").write_text("\n\nclass Limits:\n    pass\n")
    assert findings(package) == ["server/limits.py:3, session.py:2: more than one class is called Limits"]


def test_templates_may_repeat_names(package: Path) -> None:
    template = package / "project/templates/basic"
    template.mkdir(parents=True)
    (template / "models.py").write_text("class Session:\n    pass\n")
    assert findings(package) == []


def test_an_allegory(package: Path) -> None:
    (package / "server/seat.py").write_text("class _Nursery:\n    pass\n")
    assert findings(package) == [
        "server/seat.py: the name of this module is no noun of the field",
        "server/seat.py:1: _Nursery is no noun of the field",
    ]
