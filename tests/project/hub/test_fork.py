"""Copying Spaces on a Hub that is a real HTTP server, by the real huggingface_hub."""

from __future__ import annotations

import pytest

from openenv.errors import ConnectionFailed, Forbidden, InvalidArgument, Unauthorized, UsageError
from openenv.project.hub import fork

from .conftest import AT_ONCE
from .server import READ_TOKEN, TOKEN, Fault, Hub

FILES = {"openenv.yaml": b"name: echo\n", "server/app.py": b"app = 1\n"}


def test_a_copy_has_the_files_and_the_variables(hub: Hub) -> None:
    source = hub.add("alice/echo", FILES, variables={"A": "1", "B": "2"}, secrets={"S": "of alice"})
    copy = fork("alice/echo", variables={"B": "3"}, secrets={"S": "of mine"}, hardware="t4-small", patience=AT_ONCE)
    there = hub.repos["tester/echo"]
    assert there.files == source.files
    assert (there.variables, there.secrets) == ({"A": "1", "B": "3"}, {"S": "of mine"})
    assert (there.hardware, there.private) == ("t4-small", False)
    assert (str(copy.name), copy.page) == ("tester/echo", f"{hub.url}/spaces/tester/echo")
    assert copy.url == "https://tester-echo.hf.space"
    assert copy.notes == ["secrets of the original are not copied: set those that the copy needs with --secret"]


@pytest.mark.parametrize("source", ["alice/echo", "https://huggingface.co/spaces/alice/echo", "spaces/alice/echo/"])
def test_a_space_is_named_or_its_page_is(hub: Hub, source: str) -> None:
    hub.add("alice/echo", FILES)
    fork(source, "team/copy", private=True, patience=AT_ONCE)
    assert hub.repos["team/copy"].private


def test_what_may_be_no_environment_is_copied_with_a_word(hub: Hub) -> None:
    hub.add("alice/chat", {"app.py": b""})
    assert "it has no openenv.yaml" in fork("alice/chat", patience=AT_ONCE).notes[-1]


def test_what_is_not_there_or_hidden(hub: Hub) -> None:
    hub.add("alice/secret", FILES, private=True)
    for name in ("alice/echo", "alice/secret"):
        with pytest.raises(UsageError, match=f"there is no Space {name}, or it is hidden from this token"):
            fork(name, patience=AT_ONCE)


def test_a_name_that_is_taken(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    mine = hub.add("tester/echo", {"openenv.yaml": b"mine"})
    with pytest.raises(UsageError, match=r"tester/echo exists already: set another name with --repo-id"):
        fork("alice/echo", patience=AT_ONCE)
    with pytest.raises(UsageError, match=r"the copy would have the name of the Space, tester/echo: set"):
        fork("tester/echo", patience=AT_ONCE)
    assert mine.files["openenv.yaml"] == b"mine"


def test_who_may_not(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("alice/echo", FILES)
    with pytest.raises(Forbidden, match="has no permission"):
        fork("alice/echo", "bob/echo", patience=AT_ONCE)
    with pytest.raises(Forbidden, match="is read-only"):
        fork("alice/echo", token=READ_TOKEN, patience=AT_ONCE)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(Unauthorized, match="no token for the Hub"):
        fork("alice/echo", patience=AT_ONCE)


def test_names_that_are_none(hub: Hub) -> None:
    with pytest.raises(UsageError, match="'echo' has no owner: write owner/echo"):
        fork("echo", patience=AT_ONCE)
    with pytest.raises(InvalidArgument, match="not the name of a Space"):
        fork("alice/echo", "a/b/c", patience=AT_ONCE)
    with pytest.raises(InvalidArgument, match="'1A' is not the name of a variable"):
        fork("alice/echo", variables={"1A": ""}, patience=AT_ONCE)
    assert hub.requests == []


def test_hardware_that_nobody_knows_copies_nothing(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    with pytest.raises(UsageError, match=r"'t4-smal' may not be hardware of the Hub: use --hardware t4-small"):
        fork("alice/echo", hardware="t4-smal", patience=AT_ONCE)


def test_an_answer_that_was_lost(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    hub.faults = [Fault("POST */duplicate", status=0, after=True)]
    assert str(fork("alice/echo", patience=AT_ONCE).name) == "tester/echo"
    hub.faults = [Fault("POST */duplicate", times=99, status=500)]
    with pytest.raises(ConnectionFailed, match=r"status 500.*tried 4 times"):
        fork("alice/echo", "again", patience=AT_ONCE)


def test_no_secret_becomes_a_public_variable(hub: Hub) -> None:
    hub.add("alice/echo", FILES)
    with pytest.raises(UsageError, match="pass it as --secret LOGIN") as told:
        fork("alice/echo", variables={"LOGIN": TOKEN}, patience=AT_ONCE)
    assert TOKEN not in str(told.value)
    assert hub.requests == []
