from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import click
import pytest
import yaml

import openenv
from openenv.cli import main
from openenv.cli.main import app
from openenv.errors import UsageError
from openenv.project import Manifest, Project
from openenv.project import scaffold as scaffold_module
from openenv.project.hub.files import DOCKER, GIT, Globs
from openenv.project.scaffold import Scaffold, Template

SOURCE = Path(openenv.__file__).parent
EVERY_FILE = {
    ".dockerignore",
    ".gitignore",
    "README.md",
    "__init__.py",
    "client.py",
    "models.py",
    "openenv.yaml",
    "pyproject.toml",
    "server/Dockerfile",
    "server/__init__.py",
    "server/app.py",
    "server/word_hunt_environment.py",
    "tests/test_environment.py",
}
# What the Hub takes.
COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
Run = Callable[..., tuple[int, str, str]]

each_template = pytest.mark.parametrize("template", Template)


def made(folder: Path, template: Template = Template.BASIC, name: str = "word_hunt") -> Path:
    scaffold = Scaffold.of(name, template, folder)
    scaffold.make()
    return scaffold.folder


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `openenv init ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "init", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


# What is made


@each_template
def test_a_project_has_every_file_under_its_own_name(tmp_path: Path, template: Template) -> None:
    files = contents(made(tmp_path, template))
    assert files.keys() >= EVERY_FILE
    # `gymnasium_env` and such are folders here, and no word of theirs.
    left = re.compile(r"my[_-]env|\bMy[A-Z]|My env|basic_env|text_game_env|tools_env|code_env|batched_env")
    assert {path: left.findall(path + text) for path, text in files.items() if left.search(path + text)} == {}
    assert all(text.endswith("\n") for text in files.values())


@each_template
def test_its_python_is_python_and_every_module_says_what_it_is_for(tmp_path: Path, template: Template) -> None:
    for path, text in contents(made(tmp_path, template)).items():
        if path.endswith(".py"):
            assert ast.get_docstring(ast.parse(text)), path


@each_template
def test_its_manifest_and_its_project_file_agree(tmp_path: Path, template: Template) -> None:
    folder = made(tmp_path, template)
    project = Project.find(folder)
    assert (project.package, project.dockerfile) == ("word_hunt", folder / "server" / "Dockerfile")
    manifest = Manifest.read(folder)
    assert (manifest.name, manifest.app, manifest.port) == ("word_hunt", "server.app:app", 8000)
    told = tomllib.loads((folder / "pyproject.toml").read_text())
    assert told["project"]["name"] == "openenv-word_hunt"
    assert told["project"]["description"] == manifest.description
    assert told["project"]["version"] == manifest.version
    packages = {path.parent for path in folder.rglob("__init__.py")}
    assert {folder / place for place in told["tool"]["setuptools"]["package-dir"].values()} == packages


@each_template
def test_its_readme_says_what_a_space_needs(tmp_path: Path, template: Template) -> None:
    _, front, text = (made(tmp_path, template) / "README.md").read_text().split("---\n", 2)
    matter: dict[str, Any] = yaml.safe_load(front)
    said = {key: matter[key] for key in ("title", "sdk", "app_port", "base_path")}
    assert said == {"title": "Word hunt", "sdk": "docker", "app_port": 8000, "base_path": "/web"}
    assert "openenv" in matter["tags"]
    assert matter["colorFrom"] != matter["colorTo"]
    assert {matter["colorFrom"], matter["colorTo"]} <= COLORS
    assert len(matter["short_description"]) <= 60
    assert text.startswith("\n# Word hunt\n")


@each_template
def test_the_commands_in_its_readme_are_commands(tmp_path: Path, template: Template) -> None:
    lines = re.findall(
        r"^(?:\w+=\S+ )?openenv (.*?)(?: +#.*)?$", (made(tmp_path, template) / "README.md").read_text(), re.MULTILINE
    )
    assert len(lines) >= 4
    for line in lines:
        name, *arguments = line.split()
        command = app.get_command(click.Context(app), name)
        assert command is not None
        command.make_context(name, arguments)  # raises on an option that there is not


def test_templates_share_what_is_no_matter_of_kind(tmp_path: Path) -> None:
    files = [contents(made(tmp_path / template, template)) for template in Template]
    for path in (".dockerignore", ".gitignore", "server/Dockerfile", "server/__init__.py"):
        assert len({each[path] for each in files}) == 1


def test_what_tools_leave_beside_a_template_is_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = tmp_path / "templates"
    for place in ("basic_env/server/__pycache__", "basic_env/.ruff_cache/x", "common", "basic_env/x.egg-info"):
        (templates / place).mkdir(parents=True)
        (templates / place / "made.pyc").write_bytes(b"\xff")
    (templates / "common" / "made.pyc").unlink()
    (templates / "basic_env" / "my_env.txt").write_text("My env\n")
    monkeypatch.setattr(scaffold_module, "_TEMPLATES", templates)
    assert contents(made(tmp_path)) == {"word_hunt.txt": "Word hunt\n"}


def test_its_folder_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert stat.S_IMODE(made(tmp_path).stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


# Where it is made


def test_an_empty_folder_is_taken_and_missing_ones_are_made(tmp_path: Path) -> None:
    (tmp_path / "word_hunt").mkdir()
    assert (made(tmp_path) / "openenv.yaml").is_file()
    assert (made(tmp_path / "a" / "b") / "openenv.yaml").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "word_hunt"]


@pytest.mark.parametrize(
    "what", ["file inside", "hidden file inside", "file", "link to an empty folder", "dangling link"]
)
def test_what_is_there_is_left_as_it_is(tmp_path: Path, what: str) -> None:
    folder, elsewhere = tmp_path / "word_hunt", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if "inside" in what:
        folder.mkdir()
        (folder / (".git" if "hidden" in what else "notes")).write_text("mine")
    elif what == "file":
        folder.write_text("mine")
    else:
        folder.symlink_to(elsewhere if "empty" in what else tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="word_hunt exists already"):
        made(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_came_while_it_was_made_is_left_as_it_is(tmp_path: Path) -> None:
    scaffold = Scaffold.of("word_hunt", output_dir=tmp_path)
    (tmp_path / "word_hunt").mkdir()
    (tmp_path / "word_hunt" / "notes").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        scaffold.make()
    assert contents(tmp_path) == {"word_hunt/notes": "mine"}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(UsageError, match="cannot be written: Permission denied; choose another place"):
        made(tmp_path / "locked")


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written: .*; choose another place with --output-dir"):
        made(tmp_path / "file" / "inside")
    with pytest.raises(UsageError, match="cannot be written: File exists"):
        made(tmp_path / "file")
    with pytest.raises(UsageError, match="/proc/word_hunt cannot be written: .*; choose another place"):
        made(Path("/proc"))  # where nobody may make anything, root neither


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_of_what_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    written: list[Path] = []
    write = Path.write_text

    def interrupted(self: Path, *arguments: Any, **options: Any) -> int:
        if len(written) == 5:
            raise error
        written.append(self)
        return write(self, *arguments, **options)

    (tmp_path / "there").mkdir()
    monkeypatch.setattr(Path, "write_text", interrupted)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UsageError
    for place in ("there", "made/for/it"):
        written.clear()
        with pytest.raises(expected):
            made(tmp_path / place)
    assert len(written) == 5
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


# The command


def test_the_command_makes_it_and_says_what_comes_next(
    init: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = init("word_hunt")
    assert (code, err) == (0, "")
    assert out.startswith("Created word_hunt (basic, 13 files). Next:\n")
    assert [line.split("  ")[1] for line in out.splitlines()[1:]] == [
        "cd word_hunt",
        "openenv serve .",
        "openenv validate .",
        "openenv build .",
        "openenv push .",
    ]
    assert contents(tmp_path / "word_hunt").keys() == EVERY_FILE


@pytest.mark.parametrize("template", list(Template))
def test_the_command_says_first_how_to_install_what_openenv_alone_does_not_bring(
    init: Run, tmp_path: Path, template: Template
) -> None:
    code, out, _ = init("my_env", "-t", template.value, "-o", str(tmp_path))
    assert code == 0
    needs = tomllib.loads((tmp_path / "my_env/pyproject.toml").read_text())["project"]["dependencies"]
    extra = template.extra
    others = ["numpy"] if template is Template.BATCHED else []
    assert needs == [f"openenv[{extra}]>=1.0" if extra else "openenv>=1.0", *others]
    assert [line.split("  ")[1] == "pip install -e ." for line in out.splitlines()[2:3]] == [bool(extra or others)]


def test_the_command_says_the_same_as_json(init: Run, tmp_path: Path) -> None:
    code, out, err = init("word_hunt", "-t", "code", "-o", str(tmp_path / "my envs"), "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    folder = tmp_path / "my envs" / "word_hunt"
    assert (told["name"], told["template"], told["folder"]) == ("word_hunt", "code", str(folder))
    assert set(told["files"]) == contents(folder).keys()
    assert told["next"][:2] == [f"cd '{folder}'", "openenv serve ."]


def test_the_command_refuses_in_one_line(init: Run, tmp_path: Path) -> None:
    code, out, err = init("1st", "--output-dir", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith("error: '1st' cannot be the name of an environment: ")
    assert err.endswith("; try 'env_1st'\n")
    assert err.count("\n") == 1
    assert init("word_hunt", "-t", "chess", "-o", str(tmp_path))[0] == 2
    assert init()[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_every_template(init: Run) -> None:
    _, out, _ = init("--help")
    for template in Template:
        assert f"{template.value} " in out
        assert template.summary in out


# The package


@pytest.mark.real
def test_a_wheel_has_every_file_of_the_templates(tmp_path: Path) -> None:
    """Also those whose names begin with a dot; and none that a tool left beside them."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=SOURCE.parents[1], check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("openenv/project/templates/")}
    there = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in (SOURCE / "project" / "templates").rglob("*")
        if path.is_file() and not re.search(r"__pycache__|_cache/", str(path))
    }
    assert packed == there
    assert {"openenv/project/templates/common/.dockerignore", "openenv/project/templates/common/.gitignore"} <= packed


@pytest.mark.parametrize(("file", "dialect"), [(".gitignore", GIT), (".dockerignore", DOCKER)])
def test_keys_get_neither_into_git_nor_into_the_image(tmp_path: Path, file: str, dialect: str) -> None:
    ignored = Globs.read(Scaffold.of("word_hunt", output_dir=tmp_path).files()[file], dialect)
    for name in (".env", "server/.env", ".env.local", "server/prod.env", "tls/server.key", "a/b/cert.pem"):
        assert ignored.leaves_out(PurePosixPath(name)), name
    for name in (".env.example", "server/.env.example", "server/app.py", "openenv.yaml"):
        assert not ignored.leaves_out(PurePosixPath(name)), name
