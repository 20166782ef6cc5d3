"""What is told of an environment, and where its README is looked for."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path

import pytest

from openenv.environment import Environment
from openenv.server import metadata
from openenv.server.metadata import load_environment_metadata
from openenv.types import EnvironmentMetadata, Observation, State


class Described(Environment):
    """Walks about.

    In a garden.
    """

    def __init__(self):
        raise AssertionError("nobody needs an instance")

    def reset(self):
        return Observation()

    def step(self, action):
        return Observation()

    @property
    def state(self):
        return State()


class Telling(Described):
    def __init__(self): ...

    def get_metadata(self):
        return EnvironmentMetadata(name="own", description="d", author="me", readme_content="# Own")


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("ENV_README_PATH", raising=False)
    monkeypatch.setattr(metadata, "CONTAINER_README", tmp_path / "app" / "README.md")
    return tmp_path / "app" / "README.md"


@pytest.mark.parametrize("env", [Described, functools.partial(Described)])
def test_of_a_class_without_an_instance(env):
    told = load_environment_metadata(env)
    assert (told.name, told.description, told.readme_content) == ("Described", "Walks about.\n\nIn a garden.", None)
    assert load_environment_metadata(env, "garden").name == "garden"


def test_of_a_function_without_calling_it():
    def make():
        raise AssertionError("nobody needs an instance")

    assert load_environment_metadata(make).name == "make"
    assert load_environment_metadata(make, env_name="garden").description == "garden environment"


def test_an_instance_tells_itself():
    told = load_environment_metadata(Telling(), "garden")
    assert (told.name, told.author, told.readme_content) == ("own", "me", "# Own")


def test_a_configured_readme_comes_first(monkeypatch, tmp_path, nothing_configured):
    nothing_configured.parent.mkdir()
    nothing_configured.write_text("# Of the image")
    assert load_environment_metadata(Described).readme_content == "# Of the image"
    (tmp_path / "mine.md").write_text("# Mine")
    monkeypatch.setenv("ENV_README_PATH", str(tmp_path / "mine.md"))
    assert load_environment_metadata(Described).readme_content == "# Mine"
    monkeypatch.setenv("ENV_README_PATH", str(tmp_path / "none.md"))
    assert load_environment_metadata(Described).readme_content == "# Of the image"


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A project on disk, importable: `garden_env/server/garden_environment.py`."""
    folder = tmp_path / "garden_env"
    (folder / "server").mkdir(parents=True)
    (folder / "openenv.yaml").write_text("name: garden\n")
    (folder / "README.md").write_text("# Garden")
    (folder / "server" / "garden_environment.py").write_text(
        "from tests.server.test_metadata import Described\nclass Garden(Described): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_the_readme_of_a_project_is_found_above_its_module(project, nothing_configured):
    nothing_configured.parent.mkdir()
    nothing_configured.write_text("# Of the image")
    try:
        module = importlib.import_module("garden_env.server.garden_environment")
        assert load_environment_metadata(module.Garden).readme_content == "# Garden"
        (project / "README.md").write_bytes(b"x" * (metadata.README_BYTES + 1))
        assert load_environment_metadata(module.Garden).readme_content == "# Of the image"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "garden_env"]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("name: garden\nversion: 0.3.0\n", "garden", "0.3.0"),
        ("name: garden\n", "garden", "1.0.0"),
        ("- [\n", "Garden", "1.0.0"),
        ("- 1\n", "Garden", "1.0.0"),
        ("version: 2025-02-30\n", "Garden", "1.0.0"),
    ],
)
def test_the_manifest_of_a_project_names_it(project, nothing_configured, text, name, version):
    (project / "openenv.yaml").write_text(text)
    try:
        module = importlib.import_module("garden_env.server.garden_environment")
        told = load_environment_metadata(module.Garden)
        assert (told.name, told.version, told.description) == (name, version, "Garden environment")
    finally:
        for each in [each for each in sys.modules if each.partition(".")[0] == "garden_env"]:
            del sys.modules[each]


@pytest.mark.parametrize("module", ["__main__", "typed.in.somewhere"])
def test_a_class_that_is_in_no_file(monkeypatch, module):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    typed = type("Typed", (Described,), {"__module__": module, "__doc__": "On the fly."})
    told = load_environment_metadata(typed)
    assert (told.description, told.readme_content) == ("On the fly.", None)
