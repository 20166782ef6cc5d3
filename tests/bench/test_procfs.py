"""What the kernel says about processes: about this one, and about made-up ones."""

import os
import time

import pytest

from openenv.bench import machine
from openenv.bench.machine import Processes, cpu_seconds, process_tree, resident_bytes
from openenv.errors import UsageError


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Makes a process in a directory like /proc."""

    def make(pid, parent, name="python", user=0, system=0, pages=0):
        folder = tmp_path / str(pid)
        folder.mkdir()
        # pid (name) state parent group session terminal foreground flags, four fault counts, user, system
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0\n")
        (folder / "statm").write_text(f"9999 {pages} 1 1 0 1 0\n")

    (tmp_path / "meminfo").write_text("not a process\n")
    monkeypatch.setattr(machine, "PROC", tmp_path)
    return make


def test_a_tree_is_the_root_and_all_below_it(processes):
    for pid, parent in ((10, 1), (11, 10), (12, 10), (13, 12), (20, 1), (21, 20)):
        processes(pid, parent)
    assert sorted(process_tree([10])) == [10, 11, 12, 13]
    assert sorted(process_tree([12, 20])) == [12, 13, 20, 21]
    assert sorted(process_tree([10, 12])) == [10, 11, 12, 13]


def test_a_name_may_hold_anything(processes):
    processes(10, 1, name="a) S 7 (b", user=300)
    assert process_tree([10]) == [10]
    assert cpu_seconds([10]) == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))


def test_no_process_is_an_error_that_says_which(processes):
    processes(10, 1)
    with pytest.raises(UsageError, match="no process 11"):
        process_tree([10, 11])


def test_cpu_time_is_user_and_system_time_of_all(processes):
    processes(10, 1, user=100, system=50)
    processes(11, 1, user=7, system=0)
    assert cpu_seconds([10, 11]) == pytest.approx(157 / os.sysconf("SC_CLK_TCK"))


def test_memory_is_counted_in_pages(processes):
    processes(10, 1, pages=3)
    processes(11, 1, pages=4)
    assert resident_bytes([10, 11]) == 7 * os.sysconf("SC_PAGE_SIZE")


def test_what_has_ended_meanwhile_counts_for_nothing(processes):
    processes(10, 1, user=100, pages=5)
    assert cpu_seconds([10, 99]) == cpu_seconds([10])
    assert resident_bytes([10, 99]) == resident_bytes([10])


def test_this_process_uses_cpu_and_memory():
    before = cpu_seconds([os.getpid()])
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert cpu_seconds([os.getpid()]) > before
    assert resident_bytes([os.getpid()]) > 5_000_000
    assert os.getpid() in process_tree([os.getpid()])


def test_what_others_have_started_is_read_with_all_below_it(processes):
    processes(10, 1, user=100, pages=3)
    processes(11, 10, user=50, pages=4)
    started = Processes([10])
    processes(12, 11, user=30)
    assert started.cpu_seconds() == pytest.approx(180 / os.sysconf("SC_CLK_TCK"))
    assert started.resident_bytes() == 7 * os.sysconf("SC_PAGE_SIZE")
    with pytest.raises(UsageError, match="no process 99"):
        Processes([10, 99])
