"""Counting what sessions have started."""

from __future__ import annotations

import os
import subprocess
import sys

from openenv.runtime.process.fork_server import ProcessCounter, ProcessTree, read_process_tree


def test_families_are_told_apart():
    tree = ProcessTree({2: 1, 3: 2, 4: 3, 5: 2, 6: 5, 7: 1, 8: 99}, {})
    assert tree.descendants([3, 5]) == {3: [3, 4], 5: [5, 6]}


def test_a_process_that_lost_its_parent_while_we_read_belongs_to_nobody():
    assert ProcessTree({4: 3, 3: 4}, {}).descendants([9]) == {9: []}


def test_the_tree_knows_this_process():
    tree = read_process_tree()
    assert tree.parents[os.getpid()] == os.getppid()
    assert tree.threads[os.getpid()] >= 1


def test_only_those_over_the_limit_are_found():
    words = "import os, time\nfor _ in range(5): os.fork() or time.sleep(60)\nprint(flush=True)\ntime.sleep(60)"
    with (
        subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, start_new_session=True) as many,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one,
    ):
        try:
            many.stdout.readline()
            assert ProcessCounter(3).over([many.pid, one.pid]) == [many.pid]
            assert ProcessCounter(5).over([many.pid, one.pid]) == []
        finally:
            os.killpg(many.pid, 9)
            one.kill()
