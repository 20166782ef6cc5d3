"""What ignore files leave out, as Git and Docker read them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from openenv.project.hub.files import DOCKER, GIT, Globs

NAMES = ["a", "b", "ab", "a.py", "b.pyc", ".env", "x y", "[q]", "build"]
GLOBS = [
    "a", "*", "*.py", "/a", "a/", "a/b", "**/b", "a/**", "a/**/b", "!a", "!*.py", "!/b", "?", "[ab]", "[!a]*", "*/b",
    "\\!a", "#c", "b.*", "build/", "!build/a", "a*", "**", "/**/ab", "x\\ y", "a/*", "!a/b", "[[]q]", "*.pyc ", "!a/",
    "b/**", "**/", "a**b", "/*", "!/a", "[z-a]", "[",
]  # fmt: skip


def left(text: str, dialect: str, *paths: str) -> list[str]:
    globs = Globs.read(text, dialect)
    return [path for path in paths if not globs.leaves_out(PurePosixPath(path))]


def test_git_looks_for_a_name_in_all_folders_and_docker_does_not() -> None:
    paths = ("data.csv", "a/data.csv", "a/b/data.csv")
    assert left("data.csv", GIT, *paths) == []
    assert left("data.csv", DOCKER, *paths) == ["a/data.csv", "a/b/data.csv"]
    assert left("**/data.csv", DOCKER, *paths) == []
    assert left("/data.csv", GIT, *paths) == ["a/data.csv", "a/b/data.csv"]


def test_the_last_line_that_matches_counts() -> None:
    assert left("*.md\n!README.md", GIT, "a.md", "README.md") == ["README.md"]
    assert left("!README.md\n*.md", GIT, "a.md", "README.md") == []


def test_docker_keeps_what_is_in_a_folder_that_is_left_out_and_git_does_not() -> None:
    assert left("build\n!build/keep", DOCKER, "build/keep", "build/other") == ["build/keep"]
    assert left("build/\n!build/keep", GIT, "build/keep", "build/other") == []


def test_comments_empty_lines_and_what_is_no_glob_leave_out_nothing() -> None:
    for dialect in (GIT, DOCKER):
        assert left("\ufeff# a\n\n   \n!\n/\n.\n[z-a]", dialect, "a", "[z-a]", "!") == ["a", "[z-a]", "!"]


@pytest.mark.skipif(shutil.which("git") is None, reason="it is compared with Git")
def test_whatever_git_leaves_out_is_left_out(tmp_path: Path) -> None:
    chance = random.Random(7)
    files = {"/".join(chance.choices(NAMES, k=chance.randint(1, 3))) for _ in range(120)}
    files = {file for file in files if not any(other.startswith(f"{file}/") for other in files)}
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for _ in range(30):
        text = "\n".join(chance.choices(GLOBS, k=chance.randint(1, 5)))
        (tmp_path / ".git" / "info" / "exclude").write_text(text)
        command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
        said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        assert set(left(text, GIT, *files)) == {file for file in said.split("\0") if file}, text
