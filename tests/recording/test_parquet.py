"""Lines as Parquet: one schema for all environments, and every value as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openenv.recording import Source, Subject, Tap
from openenv.recording.parquet import COLUMNS, JSON_COLUMNS, convert

from .lines import Page

parquet = pytest.importorskip("pyarrow.parquet")


def record(observation: dict[str, Any]) -> bytes:
    page = Page()
    tap = Tap(page, Subject("any", "2", "hash").tail, "session")
    tap.reset({"seed": 1, "level": [1, "two"]})
    tap.ended({**observation, "reward": None, "done": False}, None)
    tap.continue_from(Source("other", "e", 3))
    tap.do({"by": 1}, {"timeout_s": 2})
    tap.ended({**observation, "reward": 2, "done": True, "truncated": True}, None)
    tap.do({"by": 2})
    tap.ended(None, TimeoutError("late"))
    return b"".join(page.texts)


def test_every_line_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    text = record({"x": [1.5, None], "name": "Grüße"})
    path.write_bytes(text)
    table = parquet.read_table(convert(path))
    assert table.column_names == list(COLUMNS)
    lines = [json.loads(line) for line in text.splitlines()]
    for row, line in zip(table.to_pylist(), lines, strict=True):
        for name in COLUMNS:
            found = row[name]
            if name in JSON_COLUMNS and found is not None:
                found = json.loads(found)
            assert found == line.get(name), name
    assert path.exists()


def test_files_of_all_environments_have_one_schema(tmp_path: Path) -> None:
    tables = []
    for number, observation in enumerate([{"x": 1}, {"y": {"deep": ["a"]}}, {}]):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(record(observation))
        tables.append(parquet.read_table(convert(path)))
    assert tables[0].schema == tables[1].schema == tables[2].schema


def test_a_file_of_many_groups_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.recording.parquet.GROUP_ROWS", 2)
    path = tmp_path / "a.jsonl"
    path.write_bytes(record({}) * 3)
    found = parquet.ParquetFile(convert(path))
    assert (found.metadata.num_rows, found.metadata.num_row_groups) == (9, 5)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":[]}\n')
    with pytest.raises(ValueError, match="line 1 is not a transition"):
        convert(path)
    assert list(tmp_path.iterdir()) == [path]
