"""Environments with one fault each, and environments without any.

`base` is a whole project without a fault. Each folder of `broken` and `good` has what is different in it: files that
stand in place of those of the base, and `case.yaml`:

    about: What is different, in words.
    check: The check that finds the fault (of `broken`).
    outcome: Of that check, if it is not fail.
    also: Checks that must fail too, since nobody can tell them apart.
    without: Files of the base that are left out.
    base: false, for a whole project of its own.
    sessions, call_s: In place of those that the tests use; a short call_s is for what is found by a call that hangs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

__all__ = ["BROKEN", "GOOD", "Case"]

_HERE = Path(__file__).parent
# What projects are called, in whichever folder: their package's name.
_NAME = "maze"


@dataclass(frozen=True)
class Case:
    """One environment of the corpus."""

    place: Path
    about: str
    check: str | None = None
    outcome: str = "fail"
    also: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    base: bool = True
    sessions: int = 16
    call_s: float = 10.0

    @classmethod
    def read(cls, place: Path) -> Case:
        return cls(place, **yaml.safe_load((place / "case.yaml").read_text(encoding="utf-8")))

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def level(self) -> str:
        """How far one must go to find its fault; what has none is looked at in every way."""
        return "load" if self.check is None or not self.check.startswith("static.") else "static"

    def write(self, folder: Path) -> Path:
        """Writes it as a project into a folder, and returns that of the project."""
        project = folder / _NAME
        ignored: Any = shutil.ignore_patterns("case.yaml", "__pycache__")
        if self.base:
            shutil.copytree(_HERE / "base", project, ignore=ignored)
        shutil.copytree(self.place, project, ignore=ignored, dirs_exist_ok=True)
        for name in self.without:
            (project / name).unlink()
        return project


def _cases(kind: str) -> list[Case]:
    return [Case.read(place.parent) for place in sorted((_HERE / kind).glob("*/case.yaml"))]


BROKEN = _cases("broken")
GOOD = _cases("good")
