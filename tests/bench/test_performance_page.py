"""The commands of `docs/performance.md` are commands."""

import re
import shlex
from pathlib import Path

import pytest

from openenv.cli.bench import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(re.sub(r"\$\S+", "64", line.strip().removesuffix("&")))
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.strip().startswith("openenv bench")
]


def test_there_are_commands():
    assert {words[2] for words in COMMANDS} == {"steps", "scale", "frames", "batched"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_can_be_typed(words):
    _, _, name, *arguments = words
    command = app.get_command(app.make_context("bench", [], resilient_parsing=True), name)
    parameters = command.make_context(name, arguments).params
    if name in {"steps", "scale"}:
        assert bool(parameters["serve"]) != bool(parameters["url"])


def test_the_verbs_of_the_makefile_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = re.findall(r"`make ([a-z-]+)`", PAGE)
    assert verbs
    for verb in verbs:
        assert f"\n{verb}: " in makefile


def test_the_scripts_are_there():
    scripts = re.findall(r"python (scripts/\w+\.py)", PAGE)
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)
