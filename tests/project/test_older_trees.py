"""Projects of older shapes, which nobody will write anew: every command takes them as they are."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.project import Project
from openenv.project.checks import Level, Outcome
from openenv.project.checks.examination import examine
from openenv.project.image import Context, Dockerfile
from openenv.project.target import load

from ..modules import forget

TESTS = Path(__file__).parents[1]
PACKAGES = TESTS / "dropin" / "packages"
# By the name that its folder has where it is worked on, as its own modules count on.
TREES = {
    **{name: PACKAGES / name for name in ("abacus_env", "harbor_env", "parcel_env")},
    "maze": TESTS / "corpus" / "good" / "older_shape",
}
ACTIONS: dict[str, dict[str, Any]] = {
    "abacus_env": {"type": "list_tools"},
    "harbor_env": {"berth": "north"},
    "parcel_env": {"van": "large"},
    "maze": {"message": "north"},
}


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of one of them; its modules and search paths are forgotten after the test."""
    folder = tmp_path / request.param
    shutil.copytree(TREES[request.param], folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield folder
    forget(tmp_path)


def test_it_is_a_project(tree: Path) -> None:
    project = Project.find(tree)
    assert (project.package, project.manifest.app) == (tree.name, "server.app:app")
    assert project.dockerfile is not None
    assert project.readme == tree / "README.md"


@pytest.mark.filterwarnings("ignore:openenv_core:DeprecationWarning")
async def test_it_is_served(tree: Path) -> None:
    async with GenericEnvClient(app=load(str(tree))) as env:
        await env.reset()
        result = await env.step(ACTIONS[tree.name])
        assert isinstance(result.observation, dict)


@pytest.mark.slow
@pytest.mark.real
def test_it_is_checked_and_nothing_of_older_style_fails(tree: Path) -> None:
    report = examine(str(tree), Level.STATIC)
    assert not [finding for finding in report.findings if finding.outcome is Outcome.FAIL]


def test_its_image_can_be_built_on_another_base(tree: Path) -> None:
    project = Project.find(tree)
    assert project.dockerfile is not None
    found = Dockerfile.read(project.dockerfile).with_base("ours:1").for_any_engine()
    assert found.base in {"ours:1", "${BASE_IMAGE}"}
    assert "ours:1" in found.text
    assert {"pyproject.toml", "server/app.py"} <= set(Context.of(tree, {}).files)
