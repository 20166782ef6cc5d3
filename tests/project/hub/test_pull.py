"""Fetching Spaces of a Hub that is a real HTTP server, by the real huggingface_hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openenv.errors import ConnectionFailed, InvalidArgument, OpenEnvError, UsageError
from openenv.project import Project
from openenv.project.hub import SpaceRequest, pull, push

from .conftest import AT_ONCE
from .server import TOKEN, Fault, Hub

FILES = {"openenv.yaml": b"name: echo\n", "server/app.py": b"app = 1\n", "big.bin": b"\0" * 1000}


def listed(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def test_a_space_becomes_a_project(hub: Hub, here: Path) -> None:
    space = hub.add("alice/echo-env", FILES)
    pulled = pull("alice/echo-env", patience=AT_ONCE)
    assert pulled.folder == here / "echo_env"  # it may be imported by that
    assert listed(pulled.folder) == {*FILES, "README.md", ".gitattributes"}
    assert (pulled.commit, pulled.files) == (space.refs["main"], 5)
    assert (pulled.folder / "big.bin").read_bytes() == FILES["big.bin"]
    assert [path.name for path in here.iterdir()] == ["echo_env"]
    assert pulled.folder.stat().st_mode & 0o777 == 0o755


def test_what_was_pushed_is_what_is_fetched_and_may_be_pushed_again(hub: Hub, project: Project, here: Path) -> None:
    push(project, SpaceRequest(), patience=AT_ONCE)
    pulled = pull("tester/guess", patience=AT_ONCE)
    again = Project.find(pulled.folder)
    assert again.dockerfile == pulled.folder / "Dockerfile"
    (done,) = push(again, SpaceRequest(), patience=AT_ONCE)
    assert not done.changed


def test_public_spaces_need_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("alice/echo", FILES)
    hub.add("tester/private", FILES, private=True)
    monkeypatch.delenv("HF_TOKEN")
    assert pull("alice/echo", patience=AT_ONCE).files == 5
    with pytest.raises(UsageError, match="not found on the Hub, or hidden from this token"):
        pull("tester/private", patience=AT_ONCE)
    assert pull("tester/private", token=TOKEN, patience=AT_ONCE).files == 5


def test_a_revision(hub: Hub, here: Path) -> None:
    space = hub.add("alice/echo", FILES)
    first = space.refs["main"]
    space.put({"openenv.yaml": b"name: newer\n"})
    space.put({"openenv.yaml": b"name: proposed\n"}, "refs/pr/1")
    assert pull("alice/echo", Path("old"), revision=first, patience=AT_ONCE).commit == first
    pull("alice/echo", Path("pr"), revision="refs/pr/1", patience=AT_ONCE)
    assert (here / "pr" / "openenv.yaml").read_text() == "name: proposed\n"
    with pytest.raises(UsageError, match="the revision does not exist"):
        pull("alice/echo", Path("none"), revision="v9", patience=AT_ONCE)


def test_what_is_no_environment_is_not_fetched(hub: Hub, here: Path) -> None:
    hub.add("alice/chat", {"app.py": b""})
    with pytest.raises(UsageError, match=r"alice/chat is not an environment, since it has no openenv.yaml"):
        pull("alice/chat", patience=AT_ONCE)
    with pytest.raises(UsageError, match="not found on the Hub"):
        pull("alice/nothing", patience=AT_ONCE)
    with pytest.raises(InvalidArgument, match="not the name of a Space"):
        pull("a/b/c", patience=AT_ONCE)
    assert list(here.iterdir()) == []


def test_a_folder_with_something_in_it_stays(hub: Hub, here: Path) -> None:
    hub.add("alice/echo", FILES)
    (here / "echo").mkdir()
    (here / "echo" / "mine").write_text("keep")
    with pytest.raises(UsageError, match=r"echo exists already: set another folder with --output-dir"):
        pull("alice/echo", patience=AT_ONCE)
    (here / "file").touch()
    with pytest.raises(UsageError, match="exists already"):
        pull("alice/echo", here / "file", patience=AT_ONCE)
    assert hub.requests == []
    with pytest.raises(UsageError, match=r"cannot be written to: .*--output-dir"):
        pull("alice/echo", here / "file" / "deeper", patience=AT_ONCE)
    (here / "empty").mkdir()
    assert pull("alice/echo", here / "empty", patience=AT_ONCE).folder == here / "empty"


@pytest.mark.parametrize(
    "path", ["GET */tree/*", "GET /api/spaces/alice/echo", "GET */resolve/*", "HEAD */resolve/*"]
)
def test_what_passes_is_tried_again_and_what_stays_leaves_nothing(hub: Hub, here: Path, path: str) -> None:
    hub.add("alice/echo", FILES)
    hub.faults = [Fault(path, times=2, status=503)]
    assert pull("alice/echo", patience=AT_ONCE).files == 5
    hub.faults = [Fault(path, times=999, status=503)]
    with pytest.raises(ConnectionFailed, match="status 503"):
        pull("alice/echo", here / "again", patience=replace(AT_ONCE, attempts=2))
    assert {each.name for each in here.iterdir()} == {"echo"}


def test_a_hub_that_is_not_there_leaves_nothing(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        pull("alice/echo", patience=AT_ONCE)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("path", ["../out.py", "/etc/out.py", "a/../../out.py"])
def test_no_file_lands_outside_of_the_folder(hub: Hub, here: Path, path: str) -> None:
    hub.add("alice/echo", FILES | {path: b"out"})
    with pytest.raises(OpenEnvError):
        pull("alice/echo", patience=replace(AT_ONCE, attempts=1))
    assert list(here.parent.rglob("out.py")) == []
