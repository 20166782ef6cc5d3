"""Recorded episodes, as `datasets` loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_dataset

from openenv.recording import Recorder, Subject
from openenv.recording.parquet import COLUMNS, convert


def record(folder: Path, environment: str, observations: list[dict[str, Any]]) -> None:
    """One file of an episode with a step for each observation, and one that failed."""
    recorder = Recorder(folder)
    tap = recorder.tap_factory(Subject(environment, "1", "hash"))("session")
    assert tap is not None
    tap.reset({"seed": 7})
    tap.ended({**observations[0], "reward": None, "done": False}, None)
    for number, observation in enumerate(observations):
        tap.do({"number": number})
        tap.ended({**observation, "reward": number / 2, "done": False}, None)
    tap.do({"number": -1})
    tap.ended(None, TimeoutError("late"))
    recorder.close(patience_s=0.0)  # no time for Parquet


def load(kind: str, folder: Path, cache: Path) -> Any:
    suffix = {"json": "jsonl"}.get(kind, kind)
    files = sorted(map(str, folder.glob(f"*.{suffix}")))
    return load_dataset(kind, data_files=files, split="train", cache_dir=str(cache))


def test_lines(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    observations = [{"x": float(number), "word": "a"} for number in range(3000)]
    record(folder, "counter", observations)
    record(folder, "counter", observations)
    rows = load("json", folder, tmp_path / "cache")
    assert len(rows) == 2 * 3002
    assert rows[2]["observation"] == {"word": "a", "x": 1.0}
    assert (rows[0]["seed"], rows[2]["reward"], rows[2]["action"]) == (7, 0.5, {"number": 1})
    assert rows[3001]["error"] == "TimeoutError: late"


def test_parquet_of_several_environments(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    picture = np.zeros((40, 40), dtype="<f4")
    record(folder, "counter", [{"x": 1.5}, {"x": float("nan")}])
    record(folder, "board", [{"cells": [[1, None], ["a"]], "screen": picture}])
    for path in list(folder.glob("*.jsonl")):
        convert(path)
    rows = load("parquet", folder, tmp_path / "cache")
    assert rows.column_names == list(COLUMNS)
    assert {row["environment"] for row in rows} == {"counter", "board"}
    seen = [json.loads(row["observation"]) for row in rows if row["observation"] is not None]
    assert {"x": "NaN"} in seen
    (marks,) = {found["screen"]["$array"]["sha256"] for found in seen if "screen" in found}
    assert (np.load(folder / "arrays" / marks[:2] / f"{marks}.npy") == picture).all()
    failed = [row for row in rows if row["error"] is not None]
    assert [row["reward"] for row in failed] == [None, None]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_what_a_killed_process_left_is_loaded_after_the_next_start(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "records"
    record(folder, "counter", [{"text": "x" * 1000}] * (1200 if kind == "parquet" else 12))
    (path,) = folder.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"episode_id":"torn')
    recorder = Recorder(folder)
    recorder.start()
    recorder.close(patience_s=60.0)
    assert len(load(kind, folder, tmp_path / "cache")) == (1202 if kind == "parquet" else 14)
