"""The skill file: where it is written, what it refuses, and that its environment works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from openenv import GenericEnvClient
from openenv.cli.main import app

PLACE = Path(".agents/skills/openenv-cli/SKILL.md")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["skills", *arguments])


def test_it_names_every_command_and_its_environment_can_be_won() -> None:
    text = run("preview").stdout
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["name"] == "openenv-cli"
    listed = re.findall(r"^  (\w+)  ", CliRunner().invoke(app, ["--help"]).stdout, re.MULTILINE)
    assert re.findall(r"^- `openenv (\w+)`:", text, re.MULTILINE) == listed
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names: dict[str, object] = {"__name__": "skill"}
    exec("\n".join(line.removeprefix("   ") for line in code.splitlines()), names)
    with GenericEnvClient(env=names["HigherLower"]).sync() as env:
        result = env.reset(seed=1)
        low, high = 1, 100
        while not result.done:
            number = (low + high) // 2
            result = env.step({"number": number})
            low, high = (number + 1, high) if result.observation["text"] == "higher" else (low, number - 1)
        assert (result.reward, result.observation["text"]) == (1.0, "yes")


def test_it_is_written_once_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("add", "--claude", "--codex").exit_code == 0
    for folder in (".claude", ".codex"):
        assert (tmp_path / folder / "skills/openenv-cli/SKILL.md").read_text() == PLACE.read_text()
    PLACE.write_text("mine")
    again = run("add", "--claude")
    assert (again.exit_code, PLACE.read_text()) == (1, "mine")
    assert "--force" in str(again.exception)
    assert run("add", "--claude", "--force").exit_code == 0
    assert PLACE.read_text() == run("preview").stdout


def test_a_folder_of_the_users_own_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / ".cursor/skills/openenv-cli"
    mine.mkdir(parents=True)
    done = run("add", "--cursor", "--force")
    assert (done.exit_code, mine.is_dir(), PLACE.exists()) == (1, True, False)
    assert "move it away" in str(done.exception)


def test_global_is_in_the_home_folder_and_dest_is_the_only_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run("add", "--global", "--opencode").exit_code == 0
    assert (tmp_path / "home" / PLACE).is_file()
    assert (tmp_path / "home/.config/opencode/skills/openenv-cli").is_symlink()
    assert run("add", "--dest", "place").exit_code == 0
    assert (tmp_path / "place/openenv-cli/SKILL.md").is_file()
    assert run("add", "--dest", "place", "--claude").exit_code == 1
