"""Somebody who looks at the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, Locator, Page

from .built import AXE, OUT

__all__ = ["LIMIT_MS", "Visitor"]

LIMIT_MS = 20_000
# Chromium itself notes each answer that is no success; what a page does about it is what counts.
_NETWORK = ("Failed to load resource", "WebSocket connection to")
_SERIOUS = frozenset({"serious", "critical"})


class Visitor:
    """A browser's page, with everything that it complained of.

    Attributes:
        page: Playwright's.
        faults: What went wrong in the page.
        refusals: Requests that failed, as the browser noted them.
        expects_refusals: Whether the test means some to fail.
    """

    def __init__(self, page: Page):
        self.page = page
        self.faults: list[str] = []
        self.refusals: list[str] = []
        self.expects_refusals = False
        page.set_default_timeout(LIMIT_MS)
        page.on("console", self._hear)
        page.on("pageerror", self._fail)

    def open(self, url: str, fragment: str = "play") -> Visitor:
        """Goes to the page of a server."""
        self.page.goto(f"{url}/web#{fragment}")
        return self

    def reset(self, seed: int | None = None) -> Visitor:
        """Begins an episode by its form."""
        if seed is not None:
            self.page.get_by_label("Seed").fill(str(seed))
        self.page.locator("#reset-button").click()
        self.at(0)
        return self

    def step(self, count: int) -> Visitor:
        """Presses the button; `count` is the step that this is."""
        self.page.locator("#step-button").click()
        return self.at(count)

    def at(self, step: int) -> Visitor:
        """Waits until a step is shown."""
        self.page.locator(f'.facts[data-step="{step}"]').first.wait_for()
        return self

    def tab(self, name: str) -> Locator:
        """Opens a tab of the page; what it shows."""
        tab = self.page.get_by_role("tab", name=name, exact=True).first
        tab.click()
        return self.page.locator(f"#{tab.get_attribute('aria-controls')}")

    def observation(self) -> Locator:
        """The observation's fields."""
        return self.tab("Fields")

    def fact(self, name: str) -> str:
        """One of the numbers above the observation."""
        return self.page.locator(".facts span", has_text=name).first.locator("b").inner_text()

    def history(self) -> list[str]:
        """The rows of the history that are in sight."""
        return self.page.locator(".transition .words").all_inner_texts()

    def look(self, name: str) -> None:
        """Keeps a picture, for people to look at."""
        OUT.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=OUT / f"{name}.png", full_page=True)

    def check_accessibility(self) -> list[str]:
        """The serious findings of axe-core."""
        self.page.evaluate(Path(AXE).read_text())
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations'], iframes: false})")
        return [
            f"{each['id']}: {[node['html'][:160] for node in each['nodes']][:5]}"
            for each in found["violations"]
            if each["impact"] in _SERIOUS
        ]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        (self.refusals if message.text.startswith(_NETWORK) else self.faults).append(message.text)

    def _fail(self, error: Error) -> None:
        self.faults.append(f"{error}\n{error.stack}")
