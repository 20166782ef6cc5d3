"""Servers that ask for a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from ..cli.process import serving
from .built import ROOT
from .conftest import Enter

KEY = "a-key-for-tests-0123456789"
VIEW = "a-key-that-may-only-look"


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    with serving(
        "tests.web.worlds.paneled.counter:app", cwd=ROOT, OPENENV_API_KEYS=f"control:{KEY},view:{VIEW}"
    ) as server:
        yield server.url


def test_the_key_is_asked_for_once_and_a_wrong_one_is_told(locked: str, enter: Enter) -> None:
    visitor = enter(locked, refusals=True)
    page = visitor.page
    key = page.get_by_label("Key", exact=True)
    expect(key).to_be_focused()
    key.fill("no-such-key")
    page.keyboard.press("Enter")
    expect(page.locator("#key-fault")).to_contain_text("rejects this key")
    assert visitor.check_accessibility() == []
    visitor.look("key")
    key.fill("an arrow → of no key")
    page.keyboard.press("Enter")
    expect(key).to_be_focused()
    expect(page.locator("#key-fault")).to_contain_text("rejects this key")
    expect(page.locator("#away")).to_have_count(0)
    key.fill(KEY)
    page.keyboard.press("Enter")
    visitor.reset(seed=2).step(1)
    expect(page.frame_locator("iframe.panel").locator("#value")).to_have_text("3")
    visitor.tab("Code")
    code = page.locator("[data-code=python]").inner_text()
    assert "OPENENV_API_KEY" in code
    assert KEY not in page.content()
    page.reload()
    page.locator("#reset-button").wait_for()
    page.goto(f"{locked}/web#server")
    expect(page.locator("[data-phase=step]")).to_be_visible()
    assert [cookie for cookie in page.context.cookies() if KEY in str(cookie)] == []


def test_a_key_in_the_address_is_taken_out_of_it(locked: str, enter: Enter) -> None:
    visitor = enter(locked, f"key={KEY}")
    visitor.reset()
    assert KEY not in visitor.page.url
    assert KEY not in visitor.page.content()


def test_who_may_only_look_is_told_so_and_sees_the_server(locked: str, enter: Enter) -> None:
    visitor = enter(locked, f"key={VIEW}", refusals=True)
    page = visitor.page
    page.locator("#reset-button").click()
    expect(page.locator(".box.bad")).to_contain_text("Forbidden")
    assert visitor.check_accessibility() == []
    page.get_by_role("link", name="Server", exact=True).click()
    page.locator("[data-phase=step]").wait_for()
    expect(page.locator(".box.bad")).to_have_count(1)
