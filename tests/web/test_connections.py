"""Servers that go away and come back, proxies, frames."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from playwright.sync_api import expect

from ..cli.process import END_S, serving
from ..ports import held_port
from .built import ROOT
from .conftest import Enter
from .visitor import Visitor

COUNTER = "tests.web.worlds.paneled.counter:app"


@pytest.fixture
def port() -> Iterator[str]:
    """Of a server that comes back."""
    with held_port() as number:
        yield str(number)


def test_a_server_that_restarts_is_told_of_and_the_history_kept(enter: Enter, port: str) -> None:
    with serving(COUNTER, "--port", port, cwd=ROOT) as server:
        visitor = enter(server.url, refusals=True).reset(seed=1).step(1).step(2)
        server.end(signal.SIGKILL)
    page = visitor.page
    page.locator("#step-button").click()
    expect(page.locator("#away")).to_contain_text("does not answer")
    expect(page.locator("#step-button")).to_be_disabled()
    assert visitor.check_accessibility() == []
    visitor.look("away")
    with serving(COUNTER, "--port", port, cwd=ROOT):
        page.get_by_role("button", name="Ask now").click()
        expect(page.locator("#notice")).to_contain_text("Reset to begin a new session")
        assert page.locator(".transition").count() == 3
        visitor.reset(seed=5).step(1)
        assert "6" in visitor.observation().inner_text()


def test_a_server_that_restarts_between_two_steps_ends_the_session_in_words(enter: Enter, port: str) -> None:
    with serving(COUNTER, "--port", port, cwd=ROOT) as server:
        visitor = enter(server.url, refusals=True).reset().step(1)
        server.end(signal.SIGKILL)
    with serving(COUNTER, "--port", port, cwd=ROOT):
        visitor.page.locator("#step-button").click()
        expect(visitor.page.locator(".box.bad")).to_contain_text("Reset to begin a new session")
        expect(visitor.page.locator("#step-button")).to_be_disabled()
        visitor.reset().step(1)


def test_who_finds_no_session_again_does_not_play_in_that_of_another_tab(enter: Enter) -> None:
    with serving(COUNTER, "--max-sessions", "2", cwd=ROOT, OPENENV_QUEUE_TIMEOUT_S="0") as server:
        visitor = enter(server.url, refusals=True).reset().step(1)
        (first,) = server.get("/sessions")
        other = Visitor(visitor.page.context.new_page()).open(server.url).reset()
        with httpx.Client(base_url=server.url) as client:
            client.delete(f"/sessions/{first['id']}").raise_for_status()
            client.post("/sessions").raise_for_status()
        page = visitor.page
        page.locator("#reset-button").click()
        expect(page.locator(".box.bad")).to_contain_text("All sessions of this server are in use")
        expect(page.locator("#step-button")).to_be_disabled()
        other.step(1)
        assert "1" in other.observation().inner_text()


@pytest.fixture(scope="module")
def proxied(counter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server behind nginx, under a prefix, beside a page that frames it."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("no nginx: install Debian's package nginx-light")
    place = tmp_path_factory.mktemp("nginx")
    holding = ExitStack()
    port = holding.enter_context(held_port())
    (place / "frame.html").write_text(
        "<!doctype html><title>around</title><body style='margin:0'>"
        "<iframe id=space src='/deep/er/web' style='width:100%;height:90vh;border:0'></iframe>"
    )
    (place / "nginx.conf").write_text(_CONFIG.format(place=place, port=port, upstream=counter))
    process = subprocess.Popen([nginx, "-p", str(place), "-c", str(place / "nginx.conf"), "-e", str(place / "error")])
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(port)
        yield url
    finally:
        process.terminate()
        process.wait(END_S)
        holding.close()


_CONFIG = """
daemon off; user root; worker_processes 1; pid {place}/pid; error_log {place}/error;
events {{ worker_connections 64; }}
http {{
  access_log off; types {{ text/html html; }}
  client_body_temp_path {place}; proxy_temp_path {place}; fastcgi_temp_path {place};
  uwsgi_temp_path {place}; scgi_temp_path {place};
  server {{
    listen 127.0.0.1:{port};
    location = /frame.html {{ root {place}; }}
    location = /favicon.ico {{ return 204; }}
    location /deep/er/ {{ proxy_pass {upstream}/; proxy_set_header Host $http_host; }}
  }}
}}
"""


def _wait(port: int) -> None:
    limit = time.monotonic() + END_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > limit:
                raise
            threading.Event().wait(0.02)


def test_the_page_works_under_a_prefix(proxied: str, enter: Enter) -> None:
    visitor = enter(f"{proxied}/deep/er").reset(seed=3).step(1)
    page = visitor.page
    expect(page.frame_locator("iframe.panel").locator("#value")).to_have_text("4")
    visitor.tab("Code")
    assert f'base_url="{proxied}/deep/er"' in page.locator("[data-code=python]").inner_text()
    page.get_by_role("link", name="Server").click()
    expect(page.locator("[data-phase=step]")).to_be_visible()
    for path in ("/deep/er/", "/deep/er/web/"):
        page.goto(proxied + path)
        page.locator("#reset-button").wait_for()
        assert page.url.split("#")[0] == f"{proxied}/deep/er/web"


def test_the_page_works_in_a_frame(proxied: str, enter: Enter) -> None:
    page = enter().page
    page.goto(f"{proxied}/frame.html")
    inner = page.frame_locator("#space")
    inner.locator("#reset-button").click()
    inner.locator('.facts[data-step="0"]').wait_for()
    inner.locator("#step-button").click()
    inner.locator('.facts[data-step="1"]').wait_for()


def test_the_page_works_in_the_frame_of_a_space_without_cookies(counter: str, enter: Enter) -> None:
    visitor = enter()
    page = visitor.page
    page.route(
        "https://tests.hf.space/",
        lambda route: route.fulfill(
            content_type="text/html", body=f"<!doctype html><title>space</title><iframe id=space src='{counter}/web'>"
        ),
    )
    page.goto("https://tests.hf.space/")
    inner = page.frame_locator("#space")
    inner.locator("#reset-button").click()
    inner.locator('.facts[data-step="0"]').wait_for()
    inner.locator("#step-button").click()
    inner.locator('.facts[data-step="1"]').wait_for()
