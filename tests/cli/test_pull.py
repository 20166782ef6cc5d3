"""`openenv pull` from a Hub that is a real HTTP server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from openenv.errors import UsageError

from ..project.hub.conftest import hub
from ..project.hub.server import Fault, Hub

__all__ = ["hub"]  # the fixture

FILES = {"openenv.yaml": b"name: echo\n", "server/app.py": b"app = 1\n"}
END_S = 60.0


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pull", *arguments])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def test_it_says_what_comes_next(hub: Hub) -> None:
    space = hub.add("alice/echo-env", FILES)
    said = run("alice/echo-env")
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        f"fetched alice/echo-env into echo_env: 4 files of commit {space.refs['main'][:8]}. Next:",
        "  pip install -e echo_env",
        "  openenv serve echo_env",
        "  openenv validate echo_env",
    ]


def test_json_is_one_document(hub: Hub, here: Path) -> None:
    space = hub.add("alice/echo", FILES)
    document = json.loads(run("alice/echo", "-o", "envs/my echo", "--revision", "main", "--json").stdout)
    assert document["folder"] == str(here / "envs" / "my echo")
    assert (document["commit"], document["files"]) == (space.refs["main"], 4)
    assert document["next"][1] == "openenv serve 'envs/my echo'"


def test_a_folder_that_is_there_is_one_line(hub: Hub, here: Path) -> None:
    hub.add("alice/echo", FILES)
    assert run("alice/echo").exit_code == 0
    said = run("alice/echo")
    assert isinstance(said.exception, UsageError)
    assert "exists already: set another folder with --output-dir" in str(said.exception)


@pytest.mark.slow
@pytest.mark.real
def test_ctrl_c_leaves_nothing(hub: Hub, here: Path) -> None:
    hub.add("alice/echo", FILES)
    release = threading.Event()
    hub.faults = [Fault("GET */resolve/*", times=9, held=release, after=True)]
    process = subprocess.Popen(
        [sys.executable, "-m", "openenv", "pull", "alice/echo"],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(here.parent / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert hub.arrived.wait(END_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=END_S)
    release.set()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: no files were kept"
    assert list(here.iterdir()) == []
