from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from openenv.cli.main import app

BASH = shutil.which("bash")
ASK = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
[ -n "{last}" ] || {{ COMP_WORDS+=(""); COMP_CWORD=$((COMP_CWORD + 1)); }}
_openenv_completion openenv
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `openenv` is, and the script for bash."""
    place = tmp_path_factory.mktemp("completion")
    command = place / "openenv"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m openenv "$@"\n')
    command.chmod(0o755)
    (place / "script").write_text(CliRunner().invoke(app, ["completion", "bash"]).stdout)
    return place


def completed(folder: Path, *words: str) -> list[str]:
    """What bash offers after words; the last one is what was typed so far."""
    assert BASH is not None
    text = ASK.format(script=folder / "script", words=" ".join(words), last=words[-1])
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    ended = subprocess.run(
        [BASH, "--norc", "-c", text], env=environ, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.real
@pytest.mark.skipif(BASH is None, reason="there is no bash")
class TestBash:
    def test_commands(self, folder: Path) -> None:
        assert completed(folder, "openenv", "se") == ["serve"]
        assert set(completed(folder, "openenv", "p")) == {"providers", "pull", "push"}

    def test_commands_of_a_group(self, folder: Path) -> None:
        assert completed(folder, "openenv", "providers", "g") == ["gc"]

    def test_options(self, folder: Path) -> None:
        assert completed(folder, "openenv", "serve", "--relo") == ["--reload"]

    @pytest.mark.slow
    def test_targets_are_bundled_environments_and_folders(self, folder: Path) -> None:
        (folder / "my_env" / "server").mkdir(parents=True)
        assert set(completed(folder, "openenv", "serve", "")) == {"echo", "benchmark", "my_env"}
        assert completed(folder, "openenv", "serve", "my") == ["my_env"]
        assert completed(folder, "openenv", "serve", "my_env/") == ["my_env/server"]
        assert completed(folder, "openenv", "serve", "nowhere/") == []

    def test_targets_of_other_commands(self, folder: Path) -> None:
        assert completed(folder, "openenv", "validate", "ec") == ["echo"]

    def test_templates(self, folder: Path) -> None:
        assert completed(folder, "openenv", "init", "--template", "text") == ["text-game"]

    def test_hidden_commands_are_not_offered(self, folder: Path) -> None:
        assert completed(folder, "openenv", "wor") == []


@pytest.mark.parametrize("typed", ["~nobody-of-this-name/", "x" * 300 + "/", "nowhere/"])
def test_where_nothing_is_nothing_is_offered(typed: str) -> None:
    command = app.get_command(click.Context(app), "serve")
    assert command is not None
    assert command.params[0].shell_complete(click.Context(command), typed) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(shell: str) -> None:
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert f"_OPENENV_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["tcsh"], ["bash", "zsh"]])
def test_shells_that_are_not_known(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["completion", *arguments]).exit_code == 2
