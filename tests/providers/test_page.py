"""What `docs/providers.md` says is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openenv.providers.catalog import CATALOG
from openenv.testing import ProviderConformance

from ..pages import assert_printed

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")


@pytest.mark.real
def test_its_first_examples_run(tmp_path: Path) -> None:
    """Those that need nothing but this machine."""
    blocks = PAGE.partition("## Which place")[0].split("```")[1::2]
    program = "\n".join(block.removeprefix("python\n") for block in blocks)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_printed(program, done.stdout)


def test_what_each_place_does() -> None:
    rows = {}
    for line in PAGE.splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        if len(cells) == 7:
            rows[cells[0]] = cells[1:]
    for entry in CATALOG.values():
        made = entry.load()
        can = made.capabilities
        yes = {True: "yes", False: "no"}
        assert rows[entry.class_name] == [
            ", ".join(sorted(can.forms)),
            ", ".join(sorted(can.limits)) or "none",
            yes[can.gpus],
            yes[can.replicas],
            yes[made.public],
            entry.extra or "none",
        ]


def test_how_many_tests_a_provider_has_to_pass() -> None:
    count = sum(name.startswith("test_") for name in dir(ProviderConformance))
    assert count == 13
    assert "thirteen tests" in PAGE
