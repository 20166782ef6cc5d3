"""Text of others is shown, and never runs."""

from __future__ import annotations

from playwright.sync_api import expect

from .conftest import Enter

SCRIPTED = "<img src=x onerror=window.attacked=1>"


def test_scripts_in_observations_drawings_and_readme_do_not_run(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset().step(1)
    page = visitor.page
    expect(page.frame_locator("iframe.rendered").locator("#said")).to_be_visible()
    assert "<img src=x" in visitor.observation().inner_text()
    visitor.tab("JSON")
    assert page.evaluate("window.attacked ?? null") is None
    page.goto(f"{rich}/web#about")
    expect(page.locator(".readme h2")).to_have_text("Rich")
    page.get_by_text("click", exact=True).click()
    assert page.evaluate("window.attacked ?? null") is None
    assert page.locator(".readme").locator("script, iframe, style, [onerror]").count() == 0
    expect(page.locator(".readme td").first).to_have_text("move")


def test_a_drawing_is_of_another_origin(rich: str, enter: Enter) -> None:
    page = enter(rich).reset().page
    frame = page.locator("iframe.rendered")
    assert frame.get_attribute("sandbox") == ""
    assert frame.evaluate("frame => frame.contentDocument") is None


def test_what_is_typed_is_text_wherever_it_comes_back(rich: str, enter: Enter) -> None:
    visitor = enter(rich)
    page = visitor.page
    page.get_by_label("Name").fill(SCRIPTED)
    visitor.reset()
    page.locator("#action_message").fill(SCRIPTED)
    visitor.step(1)
    assert SCRIPTED in visitor.observation().inner_text()
    assert page.evaluate("window.attacked ?? null") is None


def test_a_panel_cannot_reach_the_page_nor_its_key(counter: str, enter: Enter) -> None:
    visitor = enter(counter).reset()
    page = visitor.page
    expect(page.frame_locator("iframe.panel").locator("#value")).to_have_text("0")
    assert page.evaluate("window.attacked ?? null") is None
    assert "attacked" not in page.title()
    assert page.locator("iframe.panel").evaluate("frame => frame.contentDocument") is None
    panel = next(frame for frame in page.frames if frame.url.endswith("/web/frame"))
    assert panel.evaluate("(() => { try { return sessionStorage.length } catch { return 'none' } })()") == "none"
