"""Front matter of READMEs."""

from __future__ import annotations

import pytest

from openenv.errors import UsageError
from openenv.project.manifest import FrontMatter

WANTED = {"title": "My env", "sdk": "docker", "tags": ["openenv"]}


def test_what_is_there_stays_as_it_is_written() -> None:
    text = "---\ntitle:   'Mine'  # of me\nemoji: 🎲\n---\n# Mine\n\n---\n"
    completed = FrontMatter.read(text).completed(WANTED)
    assert completed == (
        "---\ntitle:   'Mine'  # of me\nemoji: 🎲\nsdk: docker\ntags:\n- openenv\n---\n# Mine\n\n---\n"
    )
    assert FrontMatter.read(completed).completed(WANTED) == completed


@pytest.mark.parametrize("text", ["# Mine\n", "", "\ufeff# Mine\n", "text\n---\na: 1\n---\n"])
def test_a_readme_without_gets_one(text: str) -> None:
    completed = FrontMatter.read(text).completed(WANTED)
    assert completed.startswith("---\ntitle: My env\nsdk: docker\ntags:\n- openenv\n---\n\n")
    assert completed.endswith(text.removeprefix("\ufeff"))
    assert FrontMatter.read(completed).values == WANTED


def test_a_key_without_a_value_gets_one_and_is_there_once() -> None:
    completed = FrontMatter.read("---\nsdk:\ntitle: Mine\n---\n").completed(WANTED)
    assert completed == "---\ntitle: Mine\nsdk: docker\ntags:\n- openenv\n---\n"


@pytest.mark.parametrize("text", ["---\n---\n# Mine\n", "---\n# nothing\n---\n# Mine\n"])
def test_an_empty_one_is_filled(text: str) -> None:
    found = FrontMatter.read(text)
    assert found.values == {}
    assert FrontMatter.read(found.completed(WANTED)).values == WANTED


def test_ends_of_lines_stay() -> None:
    completed = FrontMatter.read("---\r\ntitle: Mine\r\n---\r\n# Mine\r\n").completed(WANTED)
    assert completed == "---\r\ntitle: Mine\r\nsdk: docker\r\ntags:\r\n- openenv\r\n---\r\n# Mine\r\n"


@pytest.mark.slow
def test_what_is_no_yaml_says_where() -> None:
    with pytest.raises(UsageError, match=r"README.md: its front matter is not valid YAML: line 3, column 7: "):
        FrontMatter.read("---\ntitle: a\nsdk: a: b\n---\n")
    with pytest.raises(
        UsageError, match=r"its front matter is not valid YAML: month must be in 1..12; quote strings that look"
    ):
        FrontMatter.read("---\ndate: 2024-13-45\n---\n")
    with pytest.raises(UsageError, match="its front matter is nested too deeply"):
        FrontMatter.read(f"---\na: {'[' * 3000}\n---\n")
    with pytest.raises(UsageError, match=r"not valid YAML: line 2, column 4: the character '\\x07' is not") as told:
        FrontMatter.read("---\na: \x07\n---\n")
    assert "\n" not in str(told.value)
    with pytest.raises(UsageError, match="must have keys and values"):
        FrontMatter.read("---\n- a\n---\n")
