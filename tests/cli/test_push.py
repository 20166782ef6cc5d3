"""`openenv push` to Spaces of a Hub that is a real HTTP server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from openenv.errors import MissingExtra, Unauthorized, UsageError

from ..project.hub.conftest import DOCKERFILE, hub
from ..project.hub.server import TOKEN, Fault, Hub
from .projects import write_project

__all__ = ["hub"]  # the fixture

END_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project that passes all checks."""
    place = write_project(tmp_path / "guess", package=True, manifest="name: guess\napp: server.app:app\n")
    (place / "server" / "Dockerfile").write_text(DOCKERFILE)
    (place / "README.md").write_text("# Guess\n")
    (place / "pyproject.toml").write_text('[project]\nname = "openenv-guess"\nversion = "1"\n')
    return place


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["push", *map(str, arguments)])


def test_it_says_where_the_space_is_and_what_comes_next(hub: Hub, folder: Path) -> None:
    said = run(folder, "--no-check")
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        f"made tester/guess: {hub.url}/spaces/tester/guess",
        "  served at https://tester-guess.hf.space once the Hub has built it, which takes some minutes",
        "  check it:  openenv validate --url https://tester-guess.hf.space",
        '  use it:    EnvClient("https://tester-guess.hf.space")',
        "  every client can use the Space unless it requires an API key: --secret OPENENV_API_KEYS",
    ]
    assert run(folder, "--no-check").stdout.startswith("nothing has changed at tester/guess")


def test_all_options_reach_the_hub(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MODEL_KEY", "of-the-environment")
    exclude = tmp_path / "exclude"
    exclude.write_text("models.py\n")
    said = run(
        *(folder, "--no-check", "-r", "team/other", "--private", "-H", "t4-small", "-e", "LEVEL=3"),
        *("--secret", "MODEL_KEY"),
        *("--secret", "OTHER=on=the=line", "--exclude", exclude, "-b", "python:3.13", "--no-interface"),
    )
    assert said.exit_code == 0, said.output
    space = hub.repos["team/other"]
    assert (space.private, space.hardware, space.variables) == (True, "t4-small", {"LEVEL": "3"})
    assert space.secrets == {"MODEL_KEY": "of-the-environment", "OTHER": "on=the=line"}
    assert space.files["Dockerfile"].startswith(b"FROM python:3.13\n")
    assert b"base_path" not in space.files["README.md"]
    assert "models.py" not in space.files
    assert "of-the-environment" not in said.output
    assert "on=the=line" not in said.output
    assert "api_key=TOKEN" in said.stdout
    assert "other users of this machine can read a command line" in said.stderr


def test_json_is_one_document_and_nothing_else(hub: Hub, folder: Path) -> None:
    said = run(folder, "--no-check", "-n", "2", "--json")
    document = json.loads(said.stdout)
    assert (document["pushed"], document["files"]) == (True, 9)
    assert [space["name"] for space in document["spaces"]] == ["tester/guess-1", "tester/guess-2"]
    first = document["spaces"][0]
    assert first["commit"] == hub.repos["tester/guess-1"].refs["main"]
    assert first["next"][0] == "openenv validate --url https://tester-guess-1.hf.space"
    assert first["error"] is None
    hub.faults = [Fault("GET /api/whoami-v2", status=401)]
    said = run(folder, "--no-check", "--json")
    assert said.exit_code == 1
    assert json.loads(said.stdout)["error"]["error"] == "Unauthorized"


def test_of_several_each_is_told(hub: Hub, folder: Path) -> None:
    hub.add("tester/guess-1", {"app.py": b""}, sdk="gradio")
    said = run(folder, "--no-check", "-n", "2")
    assert said.exit_code == 1
    assert "error: tester/guess-1: tester/guess-1 exists with sdk gradio" in said.stderr
    assert "1 of 2 Spaces were pushed" in said.stderr
    assert said.stdout.startswith("made tester/guess-2")
    document = json.loads(run(folder, "--no-check", "-n", "2", "--json").stdout)
    assert [space["error"] is None for space in document["spaces"]] == [False, True]
    assert [bool(space["next"]) for space in document["spaces"]] == [False, True]


def test_a_pull_request(hub: Hub, folder: Path) -> None:
    hub.add("tester/guess", {"openenv.yaml": b""})
    said = run(folder, "--no-check", "--create-pr")
    assert said.stdout == f"opened a pull request at tester/guess: {hub.url}/spaces/tester/guess/discussions/1\n"


def test_a_rehearsal_asks_nobody(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    said = run(folder, "--no-check", "--dry-run", "-n", "2")
    assert said.exit_code == 0, said.output
    assert "to YOU/guess-1, YOU/guess-2:" in said.stdout
    assert "  Dockerfile  (made or changed for the Space)" in said.stdout
    assert json.loads(run(folder, "--no-check", "--dry-run", "--json").stdout)["spaces"] == [{"name": "YOU/guess"}]
    assert hub.requests == []


def test_what_fails_the_checks_is_not_pushed(hub: Hub, folder: Path) -> None:
    (folder / "server" / "app.py").write_text("import nothing_of_that_name\n")
    said = run(folder)
    assert isinstance(said.exception, UsageError)
    assert "nothing was pushed, since static." in str(said.exception)
    assert "or push with --no-check" in str(said.exception)
    assert "nothing_of_that_name" in said.stderr
    assert hub.requests == []


def test_errors_say_what_to_do(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(folder, "--no-check", "--secret", "NO_SUCH_VARIABLE")
    assert "--secret NO_SUCH_VARIABLE: the variable is not set in this shell" in str(said.exception)
    said = run(folder, "--no-check", "--secret", TOKEN)
    assert "the variable is not set in this shell" in str(said.exception)
    assert TOKEN not in str(said.exception) + said.output
    said = run(folder, "--no-check", "-e", "A=1", "-e", "A=2")
    assert "--env-var A is given twice" in str(said.exception)
    said = run(folder, "--registry", "x.example/y", "--private")
    assert (said.exit_code, "--private is of Spaces" in said.output) == (2, True)
    monkeypatch.delenv("HF_TOKEN")
    assert isinstance(run(folder, "--no-check").exception, Unauthorized)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    said = run(folder, "--no-check")
    assert isinstance(said.exception, MissingExtra)
    assert "pip install 'openenv[hub]'" in str(said.exception)


@pytest.fixture
def held(hub: Hub) -> Iterator[threading.Event]:
    """The Hub does not answer a commit until this is set."""
    release = threading.Event()
    hub.faults = [Fault("POST */commit/main", held=release, after=True)]
    yield release
    release.set()


@pytest.mark.real
def test_ctrl_c_ends_it_at_once_and_says_what_is_there(hub: Hub, folder: Path, held: threading.Event) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "openenv", "push", str(folder), "--no-check"],
        env={**os.environ, "HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert hub.arrived.wait(END_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=END_S)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted: each Space has either all files of this push or none of them" in err
