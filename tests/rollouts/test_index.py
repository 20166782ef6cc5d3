"""The index of rollouts: files that grow, tear, change, and are not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UnreadableRecord
from openenv.rollouts.index import INDEX_SUFFIX, SAVED_BYTES, RolloutIndex
from openenv.rollouts.records import PrefixBreak, RolloutOutcome

from .folders import make_rollout, make_turn, write_rollouts


def _ids(index: RolloutIndex) -> list[str]:
    index.refresh()
    return [summary.rollout_id for summary in index.summaries()]


def test_a_summary_has_the_facts_of_its_rollout(tmp_path: Path) -> None:
    broken = make_turn(1, prefix_break=PrefixBreak("template", 3, 9, 8), version=7)
    failed = make_rollout(6, turns=[make_turn(), broken], outcome=RolloutOutcome.MODEL_FAILED)
    write_rollouts(tmp_path / "run" / "rollouts-a.jsonl", make_rollout(5, seconds=3.5), failed)
    index = RolloutIndex(tmp_path)
    index.refresh()
    first, second = index.summaries()
    assert (first.run, first.file, first.task, first.reward, first.seconds) == (
        "run",
        "run/rollouts-a.jsonl",
        "train/1",
        5,
        3.5,
    )
    assert (second.turns, second.breaks, second.version, second.reward, second.error) == (
        2,
        1,
        7,
        None,
        "ModelFailed",
    )
    assert index.read(second.file, second.offset) == failed


def test_a_file_that_is_being_written_is_followed(tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    index = RolloutIndex(tmp_path)
    assert _ids(index) == ["0-0"]
    whole = write_rollouts(tmp_path / "b.txt", make_rollout(1), make_rollout(2)).read_bytes()
    with file.open("ab", buffering=0) as opened:
        opened.write(whole[:-9])
        assert _ids(index) == ["0-0", "0-1"]
        opened.write(whole[-9:])
    assert _ids(index) == ["0-0", "0-1", "0-2"]
    assert index.faults() == []
    last = index.summaries()[-1]
    assert index.read(last.file, last.offset) == make_rollout(2)


def test_files_that_come_go_and_are_replaced(tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "one" / "rollouts-a.jsonl", make_rollout(0), make_rollout(1))
    index = RolloutIndex(tmp_path)
    assert _ids(index) == ["0-0", "0-1"]
    stale = index.summaries()[1]
    write_rollouts(tmp_path / "two" / "rollouts-a.jsonl", make_rollout(2))
    file.unlink()
    write_rollouts(file, make_rollout(8, environment="a much longer name than before"))
    assert _ids(index) == ["2-0", "0-2"]
    with pytest.raises(UnreadableRecord, match="list them again"):
        index.read(stale.file, stale.offset)
    file.unlink()
    assert _ids(index) == ["0-2"]


def test_lines_and_files_that_are_no_rollouts_are_named_and_skipped(tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    with file.open("ab") as opened:
        opened.write(b'\n{"rollout_id": 3}\n\xff\xfe\n' + b"[" * 5000 + b"\n")
    write_rollouts(file, make_rollout(1))
    (tmp_path / "rollouts-steps.jsonl").write_text('{"step": 0, "observation": {}}\n' * 3)
    (tmp_path / "rollouts-empty.jsonl").touch()
    (tmp_path / "rollouts-folder.jsonl").mkdir()
    (tmp_path / "journal-a.jsonl").write_text('{"type": "run"}\n')
    (tmp_path / "notes.md").write_text("# Notes")
    index = RolloutIndex(tmp_path)
    assert _ids(index) == ["0-0", "0-1"]
    faults = index.faults()
    assert [fault.partition(":")[0].removeprefix(f"{tmp_path}/") for fault in faults] == [
        "rollouts-a.jsonl, line 3",
        "rollouts-a.jsonl, line 4",
        "rollouts-a.jsonl, line 5",
        "rollouts-steps.jsonl",
    ]
    assert "no file of rollouts" in faults[-1]
    assert _ids(index) == ["0-0", "0-1"]
    assert index.faults() == faults


def test_one_file_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    file = write_rollouts(tmp_path / "rollouts-b.jsonl", make_rollout(1))
    assert _ids(RolloutIndex(file)) == ["0-1"]
    with pytest.raises(UnreadableRecord, match="openenv rollout"):
        RolloutIndex(tmp_path / "c")


def test_a_large_file_has_its_index_beside_it(tmp_path: Path) -> None:
    large = make_rollout(0, turns=[make_turn(text="tea " * (SAVED_BYTES // 4))])
    file = write_rollouts(tmp_path / "rollouts-a.jsonl", large, make_rollout(1))
    saved = file.with_name(file.name + INDEX_SUFFIX)
    assert _ids(RolloutIndex(tmp_path)) == ["0-0", "0-1"]
    assert saved.is_file()
    write_rollouts(file, make_rollout(2))
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in (file, saved):
        path.rename(moved / path.name)
    index = RolloutIndex(tmp_path)
    assert _ids(index) == ["0-0", "0-1", "0-2"]
    assert {(summary.run, summary.file) for summary in index.summaries()} == {("moved", "moved/rollouts-a.jsonl")}
    assert index.read("moved/rollouts-a.jsonl", index.summaries()[2].offset) == make_rollout(2)


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"text"])
def test_a_saved_index_that_is_wrong_is_not_used(tmp_path: Path, content: bytes) -> None:
    file = write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    file.with_name(file.name + INDEX_SUFFIX).write_bytes(content)
    assert _ids(RolloutIndex(tmp_path)) == ["0-0"]


def test_the_saved_index_of_another_file_is_not_used(tmp_path: Path) -> None:
    large = make_rollout(0, turns=[make_turn(text="tea " * (SAVED_BYTES // 4))])
    file = write_rollouts(tmp_path / "rollouts-a.jsonl", large)
    assert _ids(RolloutIndex(tmp_path)) == ["0-0"]
    file.unlink()
    write_rollouts(file, make_rollout(3))
    assert _ids(RolloutIndex(tmp_path)) == ["0-3"]
