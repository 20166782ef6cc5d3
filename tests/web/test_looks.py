"""How the page looks: small and large, light and dark, with the keyboard alone, and to axe-core."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from ..cli.process import serving
from .built import ROOT
from .conftest import Enter

PAGES = ("play", "server", "replay", "about")
SIZES = {1280: 900, 375: 720}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_every_page_fits_and_has_no_serious_fault(
    rich: str, enter: Enter, tmp_path: Path, width: int, scheme: str
) -> None:
    visitor = enter(rich, viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
    page = visitor.page
    visitor.reset(seed=1)
    for count in range(1, 6):
        visitor.step(count)
    faults = []
    for name in PAGES:
        page.get_by_role("link", name=name.capitalize(), exact=True).click()
        if name == "replay":
            line = '{"step": %d, "observation": {"value": %d}, "reward": %d}\n'
            file = tmp_path / "a.jsonl"
            file.write_text("".join(line % (step, step, step % 3) for step in range(20)))
            page.locator("#file").set_input_files(file)
        seen = {"play": ".curve canvas", "server": "[data-phase=step] svg", "replay": "canvas", "about": ".readme h2"}
        page.locator(seen[name]).first.wait_for()
        visitor.look(f"{name}-{width}-{scheme}")
        faults += [f"{name}: {fault}" for fault in visitor.check_accessibility()]
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{name} scrolls sideways: {wide}"
    assert faults == []


def test_fields_json_code_and_help_have_no_serious_fault(rich: str, enter: Enter) -> None:
    visitor = enter(rich, color_scheme="dark").reset(seed=1)
    page = visitor.page
    page.get_by_role("button", name="Add Target").click()
    page.get_by_role("button", name="Add to Path").click()
    page.locator("#action_steps").fill("99")
    page.locator("#step-button").click()
    page.locator(".fault").first.wait_for()
    faults = []
    for tab in ("Fields", "Image", "JSON", "Code"):
        visitor.tab(tab)
        faults += visitor.check_accessibility()
    visitor.look("fields-dark")
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    faults += visitor.check_accessibility()
    visitor.look("help-dark")
    assert faults == []


def test_the_theme_is_chosen_and_kept(rich: str, enter: Enter) -> None:
    page = enter(rich).page
    theme = "document.documentElement.dataset.theme"
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate(theme) == "dark"
    page.reload()
    page.locator("#theme").wait_for()
    assert page.evaluate(theme) == "dark"


def test_an_episode_is_played_with_the_keyboard_alone(rich: str, enter: Enter) -> None:
    visitor = enter(rich)
    page = visitor.page
    page.locator("#reset-button").wait_for()
    page.keyboard.press("r")
    expect(page.get_by_label("Seed")).to_be_focused()
    page.keyboard.type("9")
    page.keyboard.press("Enter")
    visitor.at(0)
    page.keyboard.press("Escape")
    page.locator("main").focus()
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="North")).to_be_focused()
    page.keyboard.press("Enter")
    visitor.at(1)
    page.locator("#action_message").focus()
    page.keyboard.type("said")
    page.keyboard.press("Control+Enter")
    visitor.at(2)
    page.locator("main").focus()
    page.keyboard.press("h")
    page.keyboard.press("ArrowUp")
    visitor.at(1)
    page.locator("main").focus()
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.locator("#load-title").wait_for()


def test_the_server_page_draws_what_happens(counter: str, enter: Enter) -> None:
    visitor = enter(counter).reset()
    watcher = enter(counter, "server").page
    count = int(watcher.locator("[data-phase=step]").get_attribute("data-count") or 0)
    for step in range(1, 4):
        visitor.step(step)
    expect(watcher.locator("[data-phase=step]")).to_have_attribute("data-count", str(count + 3))
    assert watcher.locator(".map i").count() >= 1
    assert watcher.locator(".worker").count() == 1
    assert watcher.locator(".trend canvas").count() == 4


def test_a_phone_shows_the_observation_and_the_buttons_first(rich: str, enter: Enter) -> None:
    visitor = enter(rich, viewport={"width": 390, "height": 844}, color_scheme="dark").reset(seed=1)
    page = visitor.page
    frame, button = (page.locator(each).first.bounding_box() for each in ("iframe.rendered", ".offers button"))
    assert frame
    assert button
    assert frame["y"] + frame["height"] <= button["y"]
    assert button["y"] + button["height"] <= 844
    expect(page.locator("iframe.rendered.inverted")).to_have_count(1)
    expect(page.get_by_role("tab", name="State")).to_have_attribute("aria-selected", "false")


def test_a_game_with_a_hidden_answer_shows_no_state(enter: Enter) -> None:
    with serving(".", cwd=ROOT / "envs/word_game") as server:
        visitor = enter(server.url).reset(seed=1)
        tabs = visitor.page.get_by_role("tab")
        expect(tabs.filter(has_text="Code")).to_have_count(1)
        expect(tabs.filter(has_text="State")).to_have_count(0)


def test_calls_of_tools_are_a_conversation(shop: str, enter: Enter) -> None:
    visitor = enter(shop).reset()
    page = visitor.page
    page.locator("#tool").select_option("buy")
    page.get_by_label("item").fill("tea")
    visitor.step(1)
    turns = page.locator(".conversation li")
    expect(turns).to_have_count(2)
    expect(turns.last.locator(".call")).to_contain_text("buy(item=tea")
    expect(turns.last.locator(".answer")).not_to_be_empty()
    assert visitor.check_accessibility() == []
