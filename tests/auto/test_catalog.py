from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from openenv.errors import UnknownEnvironment, UsageError
from openenv.project import catalog
from openenv.project.catalog import canonical

from .distributions import files_of, install


def keys() -> list[str]:
    return [entry.key for entry in catalog.entries()]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("maze", "maze"),
        ("maze-env", "maze"),
        ("maze_env", "maze"),
        ("Maze_Env", "maze"),
        ("openenv-maze", "maze"),
        ("openenv_maze_env", "maze"),
        ("openenv-deep_blue.maze-env", "deep-blue-maze"),
        ("env", "env"),
        ("openenv-env", "env"),
        (" maze ", "maze"),
    ],
)
def test_the_forms_of_a_name(name: str, short: str) -> None:
    assert canonical(name) == short


def test_what_comes_with_the_package_is_there(site: Path) -> None:
    assert {"benchmark", "echo"} <= set(keys())
    echo = catalog.find("openenv-echo-env")
    assert (echo.distribution, echo.package) == (None, "openenv.envs.echo")
    assert echo.summary.startswith("Repeats every message")


@pytest.mark.parametrize("name", ["maze", "maze-env", "maze_env", "openenv-maze", "openenv_maze_env"])
def test_an_installed_one_is_found_by_each_of_its_names(site: Path, name: str) -> None:
    folder = install(site)
    entry = catalog.find(name)
    assert (entry.key, entry.package, entry.folder) == ("maze", "maze_env", folder)
    assert (entry.distribution, entry.version, entry.summary) == ("openenv-maze_env", "0.1.0", "A maze")
    assert entry.manifest is not None
    assert entry.manifest.name == "maze_env"


def test_nothing_of_it_is_imported(site: Path) -> None:
    install(site, files=files_of(__init__="raise RuntimeError('imported')\n"))
    assert "maze" in keys()
    assert "maze_env" not in sys.modules


def test_installing_and_removing_is_noticed(site: Path) -> None:
    assert "maze" not in keys()
    folder = install(site)
    assert "maze" in keys()
    shutil.rmtree(folder)
    shutil.rmtree(site / "openenv_maze_env-0.1.0.dist-info")
    assert "maze" not in keys()
    with pytest.raises(UnknownEnvironment):
        catalog.find("maze")


def test_what_was_found_is_kept_until_something_is_installed(site: Path) -> None:
    install(site)
    first = catalog.find("maze")
    assert catalog.find("maze") is first
    install(site, "openenv-fog", "fog")
    assert catalog.find("maze") is not first
    assert catalog.find("fog").package == "fog"


@pytest.mark.parametrize("name", ["openenv-maze_env", "openenv_maze_env", "OpenEnv.Maze-Env"])
def test_the_distribution_may_be_written_in_each_way(site: Path, name: str) -> None:
    install(site, name)
    assert catalog.find("maze").distribution == name


@pytest.mark.parametrize("name", ["maze-env", "openenvmaze", "my-openenv-maze", "openenv", "openenv-core"])
def test_other_distributions_are_none(site: Path, name: str) -> None:
    install(site, name)
    assert "maze" not in keys()
    assert not {"core", "openenv"} & set(keys())


def test_a_package_that_is_called_otherwise(site: Path) -> None:
    install(site, "openenv-maze", "labyrinth")
    assert catalog.find("maze").package == catalog.find("labyrinth").package == "labyrinth"


def test_a_package_that_only_top_level_names(site: Path) -> None:
    install(site, "openenv-maze", "labyrinth", record=False, top_level=True)
    assert catalog.find("maze").package == "labyrinth"


def test_of_several_packages_the_one_that_has_an_environment(site: Path) -> None:
    install(site, "openenv-maze", "labyrinth")
    (site / "aaa").mkdir()
    (site / "aaa" / "__init__.py").touch()
    record = site / "openenv_maze-0.1.0.dist-info" / "RECORD"
    record.write_text("aaa/__init__.py,,\n" + record.read_text())
    assert catalog.find("maze").package == "labyrinth"


@pytest.mark.parametrize("layout", ["src", "."])
def test_an_editable_installation_that_lists_no_package(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    project = tmp_path / "a project"
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    install(site, "openenv-maze", "labyrinth", project=project / layout, origin=origin)
    (project / "tests").mkdir()
    (project / "tests" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(project / layout))
    entry = catalog.find("maze")
    assert (entry.package, entry.folder) == ("labyrinth", project / layout / "labyrinth")


def test_a_manifest_beside_the_package_in_its_project(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    install(site, project=project, files=files_of(manifest=None), origin=origin)
    (project / "openenv.yaml").write_text("name: deep_maze\n")
    monkeypatch.syspath_prepend(str(project))
    assert catalog.find("deep-maze").manifest_path == project / "openenv.yaml"


def test_a_distribution_without_a_package_is_none(site: Path) -> None:
    shutil.rmtree(install(site))
    assert "maze" not in keys()


@pytest.mark.parametrize("manifest", ["name: [\n", "name: 3\n", "- maze\n"])
def test_a_manifest_that_is_not_valid_hides_no_other_environment(site: Path, manifest: str) -> None:
    install(site, files=files_of(manifest=manifest))
    install(site, "openenv-fog", "fog")
    assert {"maze", "fog", "echo"} <= set(keys())
    assert catalog.find("fog")
    with pytest.raises(UsageError, match=r"maze_env/openenv\.yaml"):
        assert catalog.find("maze").manifest


def test_an_origin_that_is_no_json_is_none(site: Path) -> None:
    install(site)
    (site / "openenv_maze_env-0.1.0.dist-info" / "direct_url.json").write_text("{")
    assert catalog.find("maze").origin == ""


def test_an_installed_one_stands_before_that_of_the_package(site: Path) -> None:
    install(site, "openenv-echo-env", "echo_env")
    assert catalog.find("echo").package == "echo_env"
    assert keys().count("echo") == 1


def test_a_name_of_several_is_refused_and_a_whole_one_is_not(site: Path) -> None:
    install(site, "openenv-maze", "deep_maze", files_of(manifest=None))
    install(site, "openenv-maze-env", "high_maze", files_of(manifest=None))
    assert catalog.find("openenv-maze").package == catalog.find("deep-maze").package == "deep_maze"
    assert catalog.find("openenv_maze_env").package == catalog.find("high-maze").package == "high_maze"
    for name in ("maze", "maze-env"):
        with pytest.raises(UsageError, match=r"openenv-maze, openenv-maze-env: use the full name"):
            catalog.find(name)


def test_an_unknown_name_has_the_close_ones_and_how_to_install(site: Path) -> None:
    install(site)
    with pytest.raises(UnknownEnvironment) as caught:
        catalog.find("mace-env")
    assert isinstance(caught.value, ValueError)
    for words in ("'mace-env'", "did you mean maze?", "echo", "pip install", "user/space"):
        assert words in caught.value.message
    with pytest.raises(UnknownEnvironment) as caught:
        catalog.find("something else entirely")
    assert "did you mean" not in caught.value.message
