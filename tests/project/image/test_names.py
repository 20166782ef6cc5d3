"""Names of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.project import Project
from openenv.project.image import image_name, local_name
from openenv.project.image.registry import image_word, remote_name, tag_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my-env", "my-env:latest"),
        ("my_env:1.0", "my_env:1.0"),
        ("h.example:5000/a/b__c", "h.example:5000/a/b__c:latest"),
        ("localhost:1/a:B-c.d", "localhost:1/a:B-c.d"),
    ],
)
def test_a_name_has_a_tag(text: str, name: str) -> None:
    assert image_name(text) == name


@pytest.mark.parametrize("text", ["", "a b", "-a", "a:", "a:b:c", "a@sha256:1", "a/", "a:-b", "a:" + "b" * 129, "ä"])
def test_what_no_image_can_be_called(text: str) -> None:
    with pytest.raises(UsageError, match=r"NAME\[:TAG\]"):
        image_name(text)


def test_capitals_are_written_small() -> None:
    with pytest.raises(UsageError, match="write my-env:1"):
        image_name("My-Env:1")


@pytest.mark.parametrize(
    ("name", "word"), [("My Env", "my-env"), ("a__b", "a__b"), ("--x--", "x"), ("a-_.b", "a-b"), ("Ünder", "nder")]
)
def test_a_project_s_name_becomes_one_that_images_may_have(name: str, word: str) -> None:
    assert image_word(name) == word
    assert image_name(word)


def test_a_name_of_which_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="set one with --tag"):
        image_word("日本")


def test_what_a_project_s_image_is_called(project: Project) -> None:
    assert local_name(project) == "openenv-my_env"
    assert tag_of(project) == "1.2"
    assert remote_name("h.example/me", project, None) == "h.example/me/my_env:1.2"
    assert remote_name("127.0.0.1:5000", project, "x") == "127.0.0.1:5000/my_env:x"


@pytest.mark.parametrize(
    ("registry", "hint"),
    [
        ("https://h.example/me", "write h.example/me"),
        ("h.example/", "write h.example$"),
        ("h.example/Me", "HOST/NAMESPACE"),
        ("", "HOST/NAMESPACE"),
        ("a b", "HOST/NAMESPACE"),
    ],
)
def test_what_is_no_registry(project: Project, registry: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        remote_name(registry, project, None)


def test_a_password_in_the_address_of_a_registry_is_not_repeated(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        remote_name("https://me:hush-hush@h.example/me", project, None)
    assert "hush" not in str(caught.value)
