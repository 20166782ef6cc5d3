"""Every block of every page is run, or, where it needs what is not everywhere, checked."""

from __future__ import annotations

import configparser
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from openenv.project import Manifest
from openenv.telemetry import metrics as telemetry_metrics

from ..warm import WarmPython
from . import commands, names
from .page import NEEDS, PAGES, PLAYED_ELSEWHERE, READ, ROOT, RUN, WRITTEN, Block, Page
from .playing import play_page, plays

PARSERS: dict[str, Callable[[str], object]] = {
    "ini": configparser.ConfigParser(interpolation=None).read_string,
    "json": json.loads,
    "toml": tomllib.loads,
}
README = Page("README.md")
played = [
    page
    for page in PAGES
    if page.name != README.name and any(plays(block) and block.title is None for block in page.blocks)
]


@pytest.fixture(scope="module")
def warm_python() -> Iterator[WarmPython]:
    """Has imported what most pages import."""
    with WarmPython("openenv.client", "openenv.server.app", "openenv.rollouts.engine") as python:
        yield python


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("page", played, ids=repr)
def test_the_blocks_of_a_page_run(page: Page, tmp_path: Path, warm_python: WarmPython) -> None:
    """In a folder of their own; each prints what it promises."""
    play_page(page, tmp_path, warm=warm_python)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("block", [block for block in README.blocks if plays(block)], ids=lambda block: block.place)
def test_a_block_of_the_readme_runs_alone(block: Block, tmp_path: Path, warm_python: WarmPython) -> None:
    page = Page(README.name, "")
    page.blocks = [block]
    play_page(page, tmp_path, warm=warm_python)


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(README.text.splitlines()) <= 150


def test_the_description_of_the_package_links_to_no_file() -> None:
    """A page of a package index has no files to link to: it shows the path in the source archive."""
    hatchling = pytest.importorskip("hatchling.metadata.core")
    metadata = hatchling.ProjectMetadata(str(ROOT), pytest.importorskip("hatchling.plugin.manager").PluginManager())
    description = metadata.core.readme
    assert re.findall(r"\]\((?!https://)[^)]*\)", description) == []
    assert "(`docs/tutorial/environment.md`)" in description


@pytest.mark.parametrize("page", PAGES, ids=repr)
def test_the_blocks_of_a_page_can_be_what_they_say(page: Page) -> None:
    """Its languages are known; what is not run is read as far as that goes."""
    assert page.fences == 2 * len(page.blocks), (
        "a block is not closed, or has no language: what a program prints is text"
    )
    wrong = [f"{block.place}: {complaint}" for block in page.blocks for complaint in complaints(block)]
    assert wrong == []
    program = "\n".join(block.source for block in page.blocks if block.language == "python" and not block.title)
    assert names.undefined(program) == ""


def complaints(block: Block) -> Iterator[str]:
    if block.language not in RUN | READ | WRITTEN:
        yield f"what is {block.language!r}?"
    if unknown := block.needs - NEEDS:
        yield f"nobody knows the need {', '.join(unknown)}"
    match block.language:
        case "python":
            yield from names.complaints(block.source)
        case "sh":
            yield from commands.complaints(block.source)
            if not block.needs and "pip install" in block.source:
                yield "what installs something needs: network"
        case "ini" | "json" | "toml":
            PARSERS[block.language](block.source)
        case "yaml":
            manifests(block)
        case "promql":
            yield from metrics(block.source)


def manifests(block: Block) -> None:
    """Of environments and of Kubernetes; other YAML has to be YAML."""
    for document in yaml.safe_load_all(block.source):
        if block.title == "openenv.yaml" or (block.title or "").endswith("/openenv.yaml"):
            Manifest.model_validate({"path": block.title, **document})
        elif isinstance(document, dict) and "apiVersion" in document:
            validation = pytest.importorskip("kubernetes_validate")
            validation.validate(document, "1.30", strict=True)


def metrics(queries: str) -> Iterator[str]:
    """Each metric is one that a server tells."""
    told = Path(telemetry_metrics.__file__).read_text() + (ROOT / "src/openenv/server/prometheus.py").read_text()
    for name in re.findall(r"openenv_\w+", queries):
        if re.sub(r"^openenv_|_(bucket|count|sum|total)$", "", name) not in told:
            yield f"no metric {name}"


@pytest.mark.parametrize("page", PAGES, ids=repr)
def test_a_sequence_diagram_has_no_semicolon(page: Page) -> None:
    """It ends a statement, also in a message, and the browser shows the diagram as text."""
    diagrams = [block for block in page.blocks if block.source.startswith("sequenceDiagram")]
    assert [block.place for block in diagrams if ";" in block.source] == []


@pytest.mark.parametrize("page", PAGES, ids=repr)
def test_commands_in_the_text_of_a_page_are_there(page: Page) -> None:
    """Those in one piece of code: `openenv serve my_env:Env --isolation process`."""
    wrong = []
    for code in re.findall(r"(?<!`)`((?:\w+=\S+ )*(?:openenv|make) [^`]+)`(?!`)", page.prose):
        wrong += [f"{code}: {complaint}" for complaint in commands.complaints_of_mention(code)]
    assert wrong == []


@pytest.mark.parametrize(("page", "need"), PLAYED_ELSEWHERE)
def test_what_is_run_elsewhere_is_run_there(page: str, need: str) -> None:
    test = (ROOT / PLAYED_ELSEWHERE[page, need]).read_text()
    assert f'play_page(Page("{page}"), tmp_path, frozenset({{"{need}"}})' in test
    assert any(block.needs == {need} for block in Page(page).blocks)


def test_how_much_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    """And how much is only checked: said on every run."""
    how = Counter(how_taken(page, block) for page in PAGES for block in page.blocks)
    needs = Counter(
        need for page in PAGES for block in page.blocks if how_taken(page, block) == "checked" for need in block.needs
    )
    told = ", ".join(f"{count} {need}" for need, count in sorted(needs.items()))
    with capsys.disabled():
        sys.stderr.write(
            f"\ndocs: {how.total()} blocks on {len(PAGES)} pages: {how['run']} run, "
            f"{how['elsewhere']} run by other tests, {how['read']} read by a parser, {how['text']} text, "
            f"{how['checked']} checked, which need: {told}\n"
        )
    assert how["run"] > how["checked"]


def how_taken(page: Page, block: Block) -> str:
    if plays(block):
        return "run"
    if any(block.needs == {need} and page.name == name for name, need in PLAYED_ELSEWHERE):
        return "elsewhere"
    if block.needs:
        return "checked"
    return "text" if block.language in WRITTEN else "read"
