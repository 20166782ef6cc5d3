"""The page about existing code says what is so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "existing-code.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`openenv.*) \| (`openenv.*) \|$", PAGE, re.MULTILINE)


def test_the_table_is_there():
    assert len(ROWS) > 10


@pytest.mark.parametrize(("old", "new"), ROWS)
def test_every_row_names_modules_that_share_their_names(old, new):
    homes = [importlib.import_module(name) for name in re.findall(r"`([\w.]+)`", new)]
    for name in re.findall(r"`([\w.]+)`", old):
        module = importlib.import_module(name)
        shared = [
            entry
            for entry in module.__all__
            if any(getattr(home, entry, None) is getattr(module, entry) for home in homes)
        ]
        assert shared, (name, new)


def test_every_module_of_the_older_names_has_a_row():
    """Or its package has one."""
    told = set(re.findall(r"`(openenv\.core[\w.]*)`", "".join(old for old, _ in ROWS)))
    root = Path(importlib.import_module("openenv.core").__file__ or "").parent
    for path in root.rglob("*.py"):
        if path.name.startswith("_"):
            continue
        parts = ["openenv", "core", *path.relative_to(root).with_suffix("").parts]
        assert told & {".".join(parts[:length]) for length in range(3, len(parts) + 1)}, parts
