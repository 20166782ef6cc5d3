"""The author's own panel, and environments of tools."""

from __future__ import annotations

import subprocess
import sys

from playwright.sync_api import expect

from .conftest import Enter


def test_a_panel_sees_observations_and_makes_calls(counter: str, enter: Enter) -> None:
    visitor = enter(counter).reset(seed=5)
    panel = visitor.page.frame_locator("iframe.panel")
    value = panel.locator("#value")
    expect(value).to_have_text("5")
    visitor.step(1)
    expect(value).to_have_text("6")
    panel.get_by_role("button", name="Add three").click()
    expect(value).to_have_text("9")
    visitor.at(2)
    panel.get_by_role("button", name="Begin at 40").click()
    expect(value).to_have_text("40")
    visitor.at(0)
    assert visitor.check_accessibility() == []
    visitor.look("panel")


def test_a_panel_that_runs_many_steps_does_not_grow_the_page(counter: str, enter: Enter) -> None:
    visitor = enter(counter).reset()
    page = visitor.page
    page.frame_locator("iframe.panel").get_by_role("button", name="Run").click()
    page.locator('.facts[data-step="150"]').wait_for(timeout=30_000)
    assert page.locator(".transition").count() < 40
    assert page.evaluate("document.querySelectorAll('*').length") < 1000
    assert visitor.fact("return") == "150"


def test_tools_are_picked_and_have_forms_of_their_own(shop: str, enter: Enter) -> None:
    visitor = enter(shop).reset()
    page = visitor.page
    page.get_by_label("Item").select_option(label="cake")
    visitor.step(1)
    assert "4.5" in visitor.observation().inner_text()
    page.get_by_label("Tool", exact=True).select_option("buy")
    page.get_by_label("Item").fill("tea")
    page.get_by_label("Count").fill("2")
    visitor.step(2)
    assert "6" in visitor.observation().inner_text()
    assert visitor.history()[1:] == ["price(item=cake)", "buy(count=2, item=tea)"] or visitor.history()[2].startswith(
        "buy("
    )
    visitor.tab("Code")
    python = page.locator("[data-code=python]").inner_text()
    assert 'env.call_tool("buy", ' in python
    said = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=True)
    assert "4.5" in said.stdout
    assert "6.0" in said.stdout
    assert visitor.check_accessibility() == []
    visitor.look("tools")
