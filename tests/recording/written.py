"""Records as a recorder writes them, by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy

__all__ = ["STEM", "array_mark", "episode", "line", "write_lines", "write_parquet"]

STEM = "20261123T011023-3f9a1c"


def line(step: int = 0, session: str = "s1", **changes: Any) -> dict[str, Any]:
    """One line of a record."""
    own: dict[str, Any] = {"action": {"by": 1}} if step else {"seed": 7, "arguments": {}}
    return {
        "episode_id": f"{session}-1",
        "session_id": session,
        "step": step,
        **own,
        "observation": {"value": step},
        "reward": 1.0 if step else None,
        "terminated": False,
        "truncated": False,
        "done": False,
        "time": 1000.0 + step,
        "duration_s": 0.5,
        "error": None,
        "environment": "counter",
        "versions": {"openenv": "1.0.0", "environment": "0.1"},
        "schema": "abc",
        **changes,
    }


def episode(steps: int, session: str = "s1", **changes: Any) -> list[dict[str, Any]]:
    """The lines of an episode, which is over with its last step."""
    end = {"done": True, "terminated": True}
    return [line(step, session, **changes, **(end if step == steps else {})) for step in range(steps + 1)]


def write_lines(file: Path, lines: Iterable[dict[str, Any]], torn: str = "") -> Path:
    """A file of lines, and what is torn behind them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines) + torn)
    return file


def write_parquet(file: Path, lines: Iterable[dict[str, Any]], rows: int = 1000) -> Path:
    """A rotated file."""
    import pyarrow
    from pyarrow import parquet

    texts = ("arguments", "action", "step_arguments", "observation", "source")
    names = (*line(0), "action", "step_arguments", "source")
    versions = pyarrow.struct([("openenv", pyarrow.string()), ("environment", pyarrow.string())])
    columns: dict[str, list[Any]] = {name: [] for name in dict.fromkeys(names)}
    for each in lines:
        for name, values in columns.items():
            value = each.get(name)
            values.append(json.dumps(value) if name in texts and value is not None else value)
    kinds = {"versions": versions, "step": pyarrow.int64(), "seed": pyarrow.int64(), "reward": pyarrow.float64()}
    flags = dict.fromkeys(("terminated", "truncated", "done"), pyarrow.bool_())
    times = dict.fromkeys(("time", "duration_s"), pyarrow.float64())
    kinds |= flags | times
    made = {name: pyarrow.array(values, kinds.get(name, pyarrow.string())) for name, values in columns.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(made), file, row_group_size=rows)
    return file


def array_mark(folder: Path, array: Any) -> dict[str, Any]:
    """An array, stored by its hash, and what stands in its place."""
    place = folder / "array.npy"
    numpy.save(place, array)
    content = place.read_bytes()
    place.unlink()
    digest = hashlib.sha256(content).hexdigest()
    file = folder / "arrays" / digest[:2] / f"{digest}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return {"$array": {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest}}
