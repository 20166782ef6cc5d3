"""Each template as its user has it: its own tests, its checks, its server, its client, its installation."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openenv.mcp import CallToolAction
from openenv.project.scaffold import Scaffold, Template

from ..cli.process import serving
from ..modules import forget

pytestmark = [pytest.mark.real, pytest.mark.slow]

LIMIT_S = 120.0
each_template = pytest.mark.parametrize("template", Template)


@pytest.fixture
def project(template: Template, tmp_path: Path) -> Path:
    """A project, under another name than that of its template."""
    scaffold = Scaffold.of(f"made_of_{template.replace('-', '_')}", template, tmp_path)
    scaffold.make()
    return scaffold.folder


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Runs a command that succeeds, and returns what it printed."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


def checked(project: Path, level: str) -> None:
    told = json.loads(run(sys.executable, "-m", "openenv", "validate", ".", "--level", level, "--json", cwd=project))
    assert told["passed"]
    assert [each for each in told["findings"] if each["outcome"] not in ("pass", "skipped")] == []


def passes(project: Path, *options: str) -> None:
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "passed" in run(*pytest_, *options, cwd=project)
    assert list(project.rglob("__pycache__")) == []


@each_template
def test_its_own_tests_pass_and_it_is_valid(project: Path, template: Template) -> None:
    if template is Template.BASIC:
        passes(project)
        checked(project, "static")
    else:  # what its conformance tests ask is what the command asks, in one process
        passes(project, "-k", "not TestConformance")
        checked(project, "runtime")


def play_basic(env: Any, made: Any) -> None:
    assert env.step(made.MyAction(guess=50)).observation.hint in ("higher", "lower", "found")


def play_text_game(env: Any, made: Any) -> None:
    assert "kitchen" in env.step(made.MyAction(command="go kitchen")).observation.text


def play_tools(env: Any, made: Any) -> None:
    assert env.call_tool("take", item="tea", count=2) == {"tea": 2}
    result = env.step(CallToolAction(tool_name="pay"))
    assert (result.reward, result.terminated, result.observation.truncated) == (0.0, True, False)


def play_gymnasium(env: Any, made: Any) -> None:
    assert env.step(made.MyAction(push="left")).observation.cart_velocity < 0


def play_batched(env: Any, made: Any) -> None:
    before = env.reset(seed=7).observation
    after = env.step(made.MyAction(push=(before.goal - before.position) / 2))
    assert after.reward == pytest.approx(-float(np.linalg.norm(before.goal - after.observation.position)))


def play_code(env: Any, made: Any) -> None:
    result = env.step(made.MyAction(code=f"print({env.state().answer!r})"))
    assert (result.reward, result.terminated) == (1.0, True)


PLAYS: dict[Template, Callable[[Any, Any], None]] = {
    Template.BASIC: play_basic,
    Template.TEXT_GAME: play_text_game,
    Template.TOOLS: play_tools,
    Template.GYMNASIUM: play_gymnasium,
    Template.BATCHED: play_batched,
    Template.CODE: play_code,
}


class Made:
    """The package of a project, with its classes by the names that they have in the template."""

    def __init__(self, package: Any, prefix: str):
        self._package = package
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name.replace("My", self._prefix))


@pytest.fixture
def made(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.syspath_prepend(project.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    words = project.name.split("_")
    yield Made(importlib.import_module(project.name), "".join(word.capitalize() for word in words))
    forget(project)


@each_template
def test_it_is_served_and_driven_by_its_own_client(project: Path, template: Template, made: Made) -> None:
    with serving(".", cwd=project) as server:
        assert project.name in server.announcement
        with made.MyEnv(base_url=server.url) as env, made.MyEnv(base_url=server.url) as other:
            first, second = env.reset(seed=7).observation, other.reset(seed=7).observation
            assert first == second
            PLAYS[template](env, made)
            assert env.state().step_count > other.state().step_count == 0
        code, _ = server.end(signal.SIGINT)
        assert code == 130


def _has_setuptools() -> bool:
    try:
        return int(metadata.version("setuptools").partition(".")[0]) >= 71
    except metadata.PackageNotFoundError:
        return False


# Older ones make no wheels by themselves; then pip fetches one, which takes long.
OFFLINE = ["--no-build-isolation"] if _has_setuptools() else []
LOOK = """
from openenv import AutoAction, AutoEnv
info = AutoEnv.get_env_info("word_hunt")
print(AutoEnv.get_env_class("word_hunt"), AutoAction.from_env("openenv-word_hunt"), info["version"], info["manifest"])
env = AutoEnv.from_env("word-hunt", base_url="http://localhost:1")
print(type(env).__name__)
"""


def test_it_is_installed_and_found_by_its_name(tmp_path: Path) -> None:
    scaffold = Scaffold.of("word_hunt", Template.BASIC, tmp_path)
    scaffold.make()
    project, venv = scaffold.folder, tmp_path / "venv"
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    # What this interpreter has, itself included, without installing it again.
    (site,) = (venv / "lib").glob("python*/site-packages")
    ours = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2] / "src")]
    (site / "borrowed.pth").write_text("\n".join(ours) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--no-deps", *OFFLINE, "--editable", project)
    classes = "<class 'word_hunt.client.WordHuntEnv'> <class 'word_hunt.models.WordHuntAction'> 0.1.0"
    assert run(python, "-c", LOOK, cwd=tmp_path) == f"{classes} {project}/openenv.yaml\nWordHuntEnv"
    wheels = tmp_path / "wheels"
    run(*pip, "wheel", "--no-deps", *OFFLINE, "--wheel-dir", wheels, project)
    (wheel,) = wheels.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {
        f"word_hunt/{name}"
        for name in (
            "README.md",
            "__init__.py",
            "client.py",
            "models.py",
            "openenv.yaml",
            "server/__init__.py",
            "server/app.py",
            "server/word_hunt_environment.py",
        )
    }
    run(*pip, "install", "--no-deps", "--no-index", "--force-reinstall", wheel)
    assert run(python, "-c", LOOK, cwd=venv) == f"{classes} {site}/word_hunt/openenv.yaml\nWordHuntEnv"
