"""Memory of one process in another: who may open it, and that it can be nothing else."""

from __future__ import annotations

import gc
import mmap
import os
import tempfile
from pathlib import Path

import pytest

from openenv._shared_memory import SharedSegment, open_segment

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are of Linux")
HERE = os.getpid()


def test_the_other_side_sees_what_is_written():
    segment = SharedSegment(1 << 20)
    token, data = open_segment(HERE, segment.descriptor)
    assert token == segment.token
    segment.data[-5:] = b"hello"
    assert bytes(data[-5:]) == b"hello"
    assert (len(data), data.readonly) == (1 << 20, True)


def test_no_other_process_can_write_to_it_or_change_its_size():
    segment = SharedSegment(4096)
    opened = os.open(f"/proc/self/fd/{segment.descriptor}", os.O_RDWR)
    try:
        for attack in (
            lambda: os.write(opened, b"x"),
            lambda: os.ftruncate(opened, 0),
            lambda: os.ftruncate(opened, 1 << 30),
            lambda: mmap.mmap(opened, 4096),
        ):
            with pytest.raises(PermissionError):
                attack()
    finally:
        os.close(opened)


def test_it_cannot_be_opened_when_it_was_withdrawn_but_still_be_read_where_it_was():
    segment = SharedSegment(64)
    _, data = open_segment(HERE, segment.descriptor)
    descriptor = segment.descriptor
    segment.withdraw()
    segment.withdraw()
    with pytest.raises(OSError, match=str(descriptor)):
        open_segment(HERE, descriptor)
    segment.data[0] = 7
    assert data[0] == 7


def test_what_is_no_sealed_memory_is_refused():
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as file, Path(os.devnull).open() as device:
        file.truncate(4096)
        unsealed = os.memfd_create("other", os.MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, 4096)
        try:
            for descriptor in (file.fileno(), device.fileno(), reading, writing, unsealed, 10**6):
                with pytest.raises(OSError):  # noqa: PT011 - each has its own message
                    open_segment(HERE, descriptor)
        finally:
            for descriptor in (reading, writing, unsealed):
                os.close(descriptor)
    with pytest.raises(OSError, match="No such"):
        open_segment(2**22 + 1, 3)


def test_its_memory_is_gone_with_its_last_user():
    gc.collect()
    maps = Path("/proc/self/maps")
    before = maps.read_text().count("openenv-arrays")
    segment = SharedSegment(1 << 20)
    _, data = open_segment(HERE, segment.descriptor)
    assert maps.read_text().count("openenv-arrays") == before + 2
    del segment, data
    assert maps.read_text().count("openenv-arrays") == before
