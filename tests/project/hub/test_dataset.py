"""Files as a dataset of a Hub that is a real HTTP server."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import Forbidden, InvalidArgument, UsageError
from openenv.project.hub import dataset_card, push_dataset

from .conftest import AT_ONCE
from .server import READ_TOKEN, Fault, Hub

COMMIT = "POST /api/datasets/*/commit/main"


def test_files_become_a_dataset_and_a_second_push_replaces_them(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / "sft.jsonl"
    path.write_text("{}\n")
    card = dataset_card("Rooms", "data/sft.jsonl", "One row each.")
    page = push_dataset("rooms", {"data/sft.jsonl": path, "README.md": card}, patience=AT_ONCE)
    assert page == f"{hub.url}/datasets/tester/rooms"
    repo = hub.repos["tester/rooms"]
    assert repo.files["data/sft.jsonl"] == b"{}\n"
    assert b"path: data/sft.jsonl" in repo.files["README.md"]
    assert not repo.private
    path.write_text('{"a": 1}\n')
    push_dataset("tester/rooms", {"data/sft.jsonl": path}, private=True, patience=AT_ONCE)
    assert repo.files["data/sft.jsonl"] == b'{"a": 1}\n'
    assert repo.private


def test_a_push_that_fails_says_what_is_there(hub: Hub, tmp_path: Path) -> None:
    hub.faults.append(Fault(COMMIT, times=9, status=500))
    with pytest.raises(UsageError, match="all files of this upload, or none"):
        push_dataset("rooms", {"a.jsonl": b"{}\n"}, patience=AT_ONCE)


def test_what_cannot_be_pushed_is_refused_before_the_upload(hub: Hub) -> None:
    with pytest.raises(InvalidArgument, match="owner/name"):
        push_dataset("no name", {})
    with pytest.raises(Forbidden, match="read-only"):
        push_dataset("rooms", {}, token=READ_TOKEN, patience=AT_ONCE)
    with pytest.raises(Forbidden, match="stranger"):
        push_dataset("stranger/rooms", {}, patience=AT_ONCE)
    assert not hub.count(COMMIT)
