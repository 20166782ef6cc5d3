"""Values that name arrays and bytes, in records that somebody may have made to do harm."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from openenv.errors import UnreadableRecord
from openenv.recording.reader import Recording

from .written import line, write_lines


def zipped() -> bytes:
    file = io.BytesIO()
    numpy.savez(file, a=numpy.zeros(6))
    return file.getvalue()


def npy(head: str, elements: bytes = b"") -> bytes:
    text = head.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + elements


def restored(folder: Path, content: bytes) -> Any:
    digest = hashlib.sha256(content).hexdigest()
    place = folder / "arrays" / digest[:2]
    place.mkdir(parents=True)
    (place / f"{digest}.npy").write_bytes(content)
    mark = {"$array": {"dtype": "<f8", "shape": [2, 3], "sha256": digest}}
    (episode,) = Recording(write_lines(folder / "a.jsonl", [line(observation=mark)])).episodes()
    (transition,) = episode.transitions()
    return transition.observation


def test_an_array_that_numpy_wrote_is_read(tmp_path: Path) -> None:
    file = io.BytesIO()
    numpy.save(file, numpy.arange(6.0).reshape(2, 3))
    assert (restored(tmp_path, file.getvalue()) == numpy.arange(6.0).reshape(2, 3)).all()


@pytest.mark.parametrize(
    "content",
    [
        zipped(),
        b"",
        b"nothing of numpy's" * 300,
        npy("(" * 9000),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000000,), }\n"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"\x80\x04."),
        npy("{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }\n", bytes(48)),
    ],
    ids=["zip", "empty", "garbage", "deep head", "huge shape", "objects", "other order"],
)
def test_a_file_that_is_no_such_array_is_an_error_of_the_record(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="is not an array of <f8"):
        restored(tmp_path, content)


@pytest.mark.parametrize("depth", [300, 900, 990, 100_000])
@pytest.mark.parametrize("where", ["observation", "action"])
def test_nesting_of_any_depth_is_read_or_refused(tmp_path: Path, where: str, depth: int) -> None:
    values = line(1)
    del values[where]
    deep = f'{json.dumps(values)[:-1]},"{where}":{"[" * depth}{"]" * depth}}}\n'
    (tmp_path / "a.jsonl").write_text(deep)
    recording = Recording(tmp_path)
    episodes = list(recording.episodes())
    assert len(episodes) + recording.damage.count == 1
    for episode in episodes:
        if depth == 300:
            assert len(list(episode.transitions())) == 1
        elif depth == 100_000:
            with pytest.raises(UnreadableRecord, match="too deep"):
                list(episode.transitions())
        else:  # it depends on the version of Python
            with contextlib.suppress(UnreadableRecord):
                assert len(list(episode.transitions())) == 1
