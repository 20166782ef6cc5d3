"""What a serving process sets for itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from openenv.server.workers.serving import tune_process
before = len(gc.get_objects())
tune_process()
print(gc.get_freeze_count() > before / 2, gc.get_threshold()[0] > 700, gc.isenabled())
"""


def test_what_is_loaded_is_left_alone_and_collection_goes_on():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["True", "True", "True"]


FRAGMENTS = """
from pathlib import Path
from openenv._processes import release_free_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

bytearray(16 << 20)  # freeing it lets glibc take blocks of up to this size from its heap
blocks = []
for _ in range(60):
    blocks += [b"x" * 900_000, b"%d" % len(blocks) * 1_000]
del blocks[::2]
before = resident()
release_free_memory()
print(before - resident())
"""


def test_memory_that_was_freed_between_blocks_in_use_is_returned():
    told = subprocess.run([sys.executable, "-c", FRAGMENTS], capture_output=True, text=True, check=True, timeout=60)
    assert float(told.stdout) > 30
