"""All checks, and the page that lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from openenv.project.checks import Level
from openenv.project.checks.examination import CODE_CHECKS, FILE_CHECKS, checks_up_to
from openenv.project.checks.findings import level_of
from openenv.project.checks.url import CHECKS

ROOT = Path(__file__).parent.parent.parent.parent
ALL = (*FILE_CHECKS, *CODE_CHECKS, *CHECKS)


def test_the_page_has_the_table_that_the_code_makes() -> None:
    script = ROOT / "scripts" / "checks_table.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    assert page.endswith(printed), "print it anew with scripts/checks_table.py, and put it at the end of the page"


def test_every_check_has_an_id_of_its_own_and_asks_a_question() -> None:
    ids = [check.id for check in ALL]
    assert len(set(ids)) == len(ids)
    for check in ALL:
        assert re.fullmatch(r"(static|runtime|load|semantic|url)\.[a-z-]+", check.id)
        assert check.asks.endswith("?")


def test_a_check_needs_only_what_is_asked_before() -> None:
    for checks in ((*FILE_CHECKS, *CODE_CHECKS), CHECKS):
        before: set[str] = set()
        for check in checks:
            assert set(check.needs) <= before, check.id
            before.add(check.id)


def test_a_level_includes_those_before_it() -> None:
    levels = (Level.STATIC, Level.RUNTIME, Level.LOAD, Level.SEMANTIC)
    asked = {level: [check.id for check in checks_up_to(level)] for level in levels}
    assert asked[Level.RUNTIME][: len(asked[Level.STATIC])] == asked[Level.STATIC]
    assert asked[Level.LOAD] == [check.id for check in CODE_CHECKS if level_of(check) is not Level.SEMANTIC]
    needed = {need for check in CODE_CHECKS if check.id in asked[Level.SEMANTIC] for need in check.needs}
    assert needed <= set(asked[Level.SEMANTIC])
    assert {name for name in asked[Level.SEMANTIC] if name.startswith("runtime.")} == {
        "runtime.session",
        "runtime.reset",
        "runtime.step",
        "runtime.seed",
    }
    assert {level_of(check) for check in checks_up_to(Level.RUNTIME)} == {Level.STATIC, Level.RUNTIME}
