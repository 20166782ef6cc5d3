from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.project.scaffold import MOST_CHARACTERS, ProjectName


@pytest.mark.parametrize(
    ("name", "prefix", "title"),
    [
        ("word_hunt_env", "WordHunt", "Word hunt env"),
        ("maze", "Maze", "Maze"),
        ("env", "Env", "Env"),
        ("MyEnv", "My", "MyEnv"),
        ("game2_env", "Game2", "Game2 env"),
        ("env_1st", "Env1st", "Env 1st"),
    ],
)
def test_a_name_in_its_forms(name: str, prefix: str, title: str) -> None:
    found = ProjectName.checked(name)
    assert (found.package, found.prefix, found.title) == (name, prefix, title)


@pytest.mark.parametrize(
    ("name", "why", "instead"),
    [
        ("my-env", "letters, digits and single underscores", "my_env"),
        ("1st", "begin with a letter", "env_1st"),
        ("", "letters", "my_env"),
        ("!", "letters", "my_env"),
        (".", "letters", "my_env"),
        ("../up", "letters", "up"),
        ("envs/maze", "letters", "maze"),
        ("maze\n", "letters", "maze"),
        ("über", "letters", "uber"),
        ("_maze", "letters", "maze"),
        ("maze_", "letters", "maze"),
        ("word__hunt", "single underscores", "word_hunt"),
        ("class", "a keyword of Python", "class_env"),
        ("None", "a keyword of Python", "none"),
        ("json", "standard library", "json_env"),
        ("JSON", "standard library", "json_env"),
        ("test", "reserved in projects", "test_env"),
        ("openenv", "reserved in projects", "openenv_env"),
        ("tests", "reserved in projects", "tests_env"),
        ("server", "reserved in projects", "server_env"),
        ("call_tool", "reserved in projects", "call_tool_env"),
        ("yes", "YAML would not read it", "yes_env"),
        ("Null", "YAML would not read it", "null_env"),
        ("pydantic", "openenv may need", "pydantic_env"),
        ("kr8s", "openenv may need", "kr8s_env"),  # installed or not
        ("_pytest", "letters", "pytest_env"),
        ("pluggy", "an installed module", "pluggy_env"),
        ("x" * (MOST_CHARACTERS + 1), "characters", "x" * (MOST_CHARACTERS - 8)),
    ],
)
def test_a_name_that_is_not_fit_is_refused_with_one_that_is(name: str, why: str, instead: str) -> None:
    with pytest.raises(UsageError) as refused:
        ProjectName.checked(name)
    message = refused.value.message
    assert why in message
    assert message.endswith(f"; try {instead!r}")
    assert "\n" not in message
    ProjectName.checked(instead)


def test_names_that_mean_something_else_already() -> None:
    with pytest.raises(UsageError, match="comes with openenv; try 'echo_env'"):
        ProjectName.checked("echo", frozenset({"echo", "benchmark"}))


def test_the_folder_that_it_will_be_is_not_in_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fresh_env").mkdir()
    ProjectName.checked("fresh_env", place=tmp_path / "fresh_env")
    with pytest.raises(UsageError, match="an installed module"):
        ProjectName.checked("fresh_env", place=tmp_path / "elsewhere" / "fresh_env")
