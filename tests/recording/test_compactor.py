"""What is done about files that nobody writes any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from openenv.recording import storage as journal_module
from openenv.recording.compactor import SMALL_BYTES, compact, main, needs_compaction
from openenv.recording.storage import Journal

LINE = b'{"episode_id":"e","session_id":"s","step":1,"observation":{"x":[1,"NaN"]},"done":false}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "20260101T000000-abcdef-000001.jsonl"


def test_a_torn_last_line_is_cut_off_and_the_rest_stays(path: Path) -> None:
    path.write_bytes(LINE * 3 + LINE[:20])
    assert needs_compaction(path)
    compact(path.parent)
    assert path.read_bytes() == LINE * 3
    assert not needs_compaction(path)


@pytest.mark.parametrize("content", [b"", LINE[:30], b"x" * 200_000])
def test_a_file_without_a_whole_line_goes(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    compact(path.parent)
    assert not path.exists()


def test_a_large_one_becomes_parquet(path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    count = SMALL_BYTES // len(LINE) + 1
    path.write_bytes(LINE * count + LINE[:-1])
    compact(path.parent)
    (rotated,) = path.parent.iterdir()
    assert rotated.name == path.stem + ".parquet"
    assert parquet.read_table(rotated).num_rows == count


def test_lines_that_are_already_parquet_go(path: Path) -> None:
    path.write_bytes(LINE)
    path.with_suffix(".parquet").write_bytes(b"made before somebody was killed")
    assert needs_compaction(path)
    compact(path.parent)
    assert not path.exists()


def test_a_file_that_is_being_written_is_left_alone(path: Path) -> None:
    journal = Journal(path)
    journal.append([LINE])
    os.truncate(path, 20)
    compact(path.parent)
    assert path.stat().st_size == 20
    journal.close()
    compact(path.parent)
    assert not path.exists()


def test_lines_of_something_else_are_never_lost(path: Path) -> None:
    pytest.importorskip("pyarrow")
    content = b'{"step":"no number"}\n' + LINE * (SMALL_BYTES // len(LINE) + 1)
    path.write_bytes(content)
    other = path.with_name("20260101T000000-abcdef-000002.jsonl")
    other.write_bytes(LINE + b"torn")
    with pytest.raises(ValueError, match="line 1 is not a transition"):
        compact(path.parent)
    assert path.read_bytes() == content
    assert other.read_bytes() == LINE
    assert sorted(path.parent.iterdir()) == [path, other]


def test_files_that_no_recorder_made_are_left_alone(tmp_path: Path) -> None:
    contents = {
        "notes.jsonl": b'{"a":1}\n{"b":2}',
        "empty.jsonl": b"",
        "export.jsonl": LINE * (SMALL_BYTES // len(LINE) + 1),
        "both.jsonl": LINE,
        "both.parquet": b"an export, too",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    compact(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents


def test_a_file_that_is_just_being_made_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = journal_module.lock_file

    def somebody_is_faster(fd: int) -> bool:
        monkeypatch.undo()
        compact(path.parent)
        return lock(fd)

    monkeypatch.setattr(journal_module, "lock_file", somebody_is_faster)
    journal = Journal(path)
    compact(path.parent)
    journal.append([LINE])
    journal.append([LINE])
    journal.close()
    assert path.read_bytes() == LINE * 2
    assert list(path.parent.iterdir()) == [path]


def test_parts_of_arrays_that_will_never_be_whole_go(tmp_path: Path) -> None:
    folder = tmp_path / "arrays" / "ab"
    folder.mkdir(parents=True)
    old, new = folder / "old.npy.1.part", folder / "new.npy.2.part"
    for part in (old, new):
        part.write_bytes(b"x")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    compact(tmp_path)
    assert list(folder.iterdir()) == [new]


def test_as_a_process_it_says_what_went_wrong(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    path.write_bytes(LINE + b'{"more":"%b"}\n' % (b"x" * SMALL_BYTES) + b"[]\n")
    assert main([str(path.parent)]) == 1
    assert f"{path}: line 3 is not a transition" in capsys.readouterr().err


def test_a_file_that_has_gone_meanwhile_is_no_error(path: Path) -> None:
    assert main([str(path)]) == 0
