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
