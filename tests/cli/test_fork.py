"""`openenv fork` on a Hub that is a real HTTP server."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from openenv.errors import UsageError

from ..project.hub.conftest import hub
from ..project.hub.server import Hub

__all__ = ["hub"]  # the fixture

FILES = {"openenv.yaml": b"name: echo\n"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["fork", *arguments])


def test_it_says_where_the_copy_is_and_what_comes_next(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    said = run("alice/echo")
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        f"copied alice/echo to tester/echo: {hub.url}/spaces/tester/echo",
        "  served at https://tester-echo.hf.space once the Hub has built it, which takes some minutes",
        "  check it:   openenv validate --url https://tester-echo.hf.space",
        "  change it:  openenv pull tester/echo",
    ]


@pytest.mark.parametrize("secret", ["-s", "--secret", "--set-secret"])
def test_all_options_reach_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    hub.add("alice/echo", FILES)
    monkeypatch.setenv("MODEL_KEY", "of-the-environment")
    options = ["-r", "team/copy", "--private", "-e", "A=1", secret, "MODEL_KEY", "-H", "t4-small", "--json"]
    said = run("alice/echo", *options)
    copy = hub.repos["team/copy"]
    assert (copy.private, copy.hardware, copy.variables) == (True, "t4-small", {"A": "1"})
    assert copy.secrets == {"MODEL_KEY": "of-the-environment"}
    assert "of-the-environment" not in said.output
    assert json.loads(said.stdout)["name"] == "team/copy"


def test_a_name_that_is_taken_is_one_line(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    hub.add("tester/echo", FILES)
    said = run("alice/echo")
    assert isinstance(said.exception, UsageError)
    assert "tester/echo exists already: set another name with --repo-id" in str(said.exception)


def test_a_secret_on_the_command_line_is_taken_and_warned_of(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    said = run("alice/echo", "-s", "MODEL_KEY=on-the-line")
    assert hub.repos["tester/echo"].secrets == {"MODEL_KEY": "on-the-line"}
    assert (
        "other users of this machine can read a command line: --secret NAME takes the value from the environment"
        in said.stderr
    )
    assert "on-the-line" not in said.output
