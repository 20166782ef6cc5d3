"""One browser and one server of each environment for all tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("playwright", reason="the page is tested with playwright: pip install playwright")

from playwright.sync_api import Browser, expect, sync_playwright

from ..cli.process import serving
from .built import ROOT, browser_path, build
from .visitor import LIMIT_MS, Visitor

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The page of a Space, here made up, frames a server of this machine.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
]
Enter = Callable[..., Visitor]
expect.set_options(timeout=LIMIT_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = browser_path()
    build()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def enter(browser: Browser) -> Iterator[Enter]:
    """Opens a page in a browser of its own; in the end none of them has complained of anything.

    Its `refusals` are those of the test: a request that nobody meant to fail is a fault too.
    """
    with ExitStack() as stack:
        visitors: list[Visitor] = []

        def enter(url: str | None = None, fragment: str = "play", refusals: bool = False, **options: Any) -> Visitor:
            context = browser.new_context(**options)
            stack.callback(context.close)
            visitor = Visitor(context.new_page())
            visitor.expects_refusals = refusals
            visitors.append(visitor)
            return visitor if url is None else visitor.open(url, fragment)

        yield enter
        for visitor in visitors:
            if not visitor.page.is_closed():
                visitor.page.goto("about:blank")  # a session ends with its page; one that is closed may not get to it
            assert visitor.faults == []
            assert visitor.expects_refusals or visitor.refusals == []


def _server(world: str) -> Any:
    @pytest.fixture(scope="session")
    def server(browser: Browser) -> Iterator[str]:
        with serving(f"tests.web.worlds.{world}:app", cwd=ROOT) as process:
            yield process.url

    return server


rich = _server("rich")
shop = _server("shop")
counter = _server("paneled.counter")
