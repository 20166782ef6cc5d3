"""The site is built without a warning, has every public name, and asks no other host for anything."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from openenv.errors import MissingExtra

from .page import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings_handlers.python")
pytestmark = pytest.mark.real

LIMIT_S = 240.0
REFERENCE = ROOT / "docs" / "reference" / "python"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


class Assets(HTMLParser):
    """What a browser would fetch to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.addresses.append(given.get("href") or "")
        elif tag in {"script", "img", "iframe", "source"}:
            self.addresses.append(given.get("src") or "")


@pytest.mark.slow
def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        assert [address for address in assets.addresses if re.match(r"(https?:)?//", address)] == [], page


@pytest.mark.slow
def test_a_page_with_a_diagram_brings_mermaid(site: Path) -> None:
    """The theme would fetch it from another host."""
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        script = re.search(r'<script src="([^"]*javascripts/mermaid.js)"', html)
        assert ('class="mermaid"' in html) == bool(script), page
        assert script is None or (page.parent / script[1]).is_file()


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    missing = []
    for page in sorted(REFERENCE.glob("*.md")):
        html = (site / "reference" / "python" / f"{page.stem}.html").read_text(encoding="utf-8")
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            try:
                module = importlib.import_module(name)
            except MissingExtra:  # an adapter to a package that is not here
                continue
            for public in module.__all__:
                try:
                    parameter = isinstance(getattr(module, public), TypeVar)
                except MissingExtra:
                    parameter = False
                if not parameter and f'id="{name}.{public}"' not in html:
                    missing.append(f"{name}.{public}")
    assert missing == []


@pytest.mark.slow
def test_every_command_is_in_the_reference(site: Path) -> None:
    html = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in ("openenv serve", "openenv bench scale", "openenv providers gc", "openenv deploy kubernetes"):
        assert f">{command}<" in html


@pytest.mark.slow
def test_words_are_found(site: Path) -> None:
    """The index that the page's search reads has the text of all pages."""
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for word in ("message_timeout_s", "VectorEnvClient", "self.rng", "Lost nodes"):
        assert word in index


def test_what_its_configuration_names_is_pinned_to_this_repository() -> None:
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert configuration["theme"]["font"] is False
    assert "repo_url" not in configuration
