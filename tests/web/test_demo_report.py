"""The report of `openenv bench demo` in a browser: small and large, light and dark, and to axe-core."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.demo_report import write_demo

from ..bench.rows import play, workload
from .conftest import Enter

SIZES = {1440: 900, 390: 844, 320: 640}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    cards = [play(number, (1.0 if number % 2 else -1.0,), "Blackjack-v1") for number in range(3)]
    write_demo(folder, [workload("benchmark"), workload("CartPole-v1"), workload("Blackjack-v1", cards)])
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_whole_and_has_no_serious_fault(report: Path, enter: Enter, scheme: str) -> None:
    visitor = enter(color_scheme=scheme)
    page = visitor.page
    page.goto(report.as_uri())
    for width, height in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"scrolls sideways at {width}"
        visitor.look(f"demo-{width}-{scheme}")
        assert visitor.check_accessibility() == []
    # On the narrowest telephones the table scrolls in its frame; on the others every column is in sight.
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(
        "[...document.querySelectorAll('.wide')].every(each => each.scrollWidth <= each.clientWidth)"
    )
    assert page.evaluate("[...document.images].every(each => each.naturalWidth > 0)")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
