"""Who has which GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import LaunchFailed
from openenv.providers.local import GpuAllocator


def test_each_is_given_once_until_it_is_given_back() -> None:
    gpus = GpuAllocator()
    first, second = gpus.take(2, "0,1,2,3"), gpus.take(1, "0,1,2,3")
    assert (first, second) == (("0", "1"), ("2",))
    with pytest.raises(LaunchFailed, match="2 GPUs requested, but only 1 of 4 are free"):
        gpus.take(2, "0,1,2,3")
    gpus.give_back(first)
    gpus.give_back(first)
    assert gpus.take(3, "0,1,2,3") == ("0", "1", "3")


@pytest.mark.parametrize(("visible", "names"), [("GPU-aa, GPU-bb", ("GPU-aa", "GPU-bb")), ("3,-1,4", ("3",))])
def test_those_that_this_process_was_given(visible: str, names: tuple[str, ...]) -> None:
    assert GpuAllocator().take(len(names), visible) == names


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_process_that_was_given_none(visible: str) -> None:
    with pytest.raises(LaunchFailed, match="only 0 of 0 are free"):
        GpuAllocator().take(1, visible)


def test_a_machine_that_tells_how_many_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: [Path("/dev/nvidia1"), Path("/dev/nvidia0")])
    gpus = GpuAllocator()
    assert gpus.take(2, None) == ("0", "1")
    with pytest.raises(LaunchFailed, match="only 0 of 2 are free"):
        gpus.take(1, None)


def test_one_that_does_not_is_believed_to_have_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    gpus = GpuAllocator()
    assert (gpus.take(2, None), gpus.take(3, None)) == (("0", "1"), ("2", "3", "4"))
    gpus.give_back(("1",))
    assert gpus.take(2, None) == ("1", "5")
