"""What `docs/providers.md` says is so."""

from __future__ import annotations

from pathlib import Path

from openenv.providers.catalog import CATALOG
from openenv.testing import ProviderConformance

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")


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
