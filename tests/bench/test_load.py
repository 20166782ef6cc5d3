"""Sharing out, counting, and waiting for one another. Processes are started in `tests/real/test_bench_load.py`."""

import gc
import subprocess
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.bench.load import LoadCounts, LoadProcess, split_evenly


class Line:
    """The end of a connection that a member of a crew holds."""

    def __init__(self):
        self.said = []

    def send(self, message):
        self.said.append(message)

    def recv(self):
        self.said.append("waits")


@pytest.fixture
def board():
    return array("q", [0] * (3 * len(LoadCounts._fields)))


@given(st.integers(min_value=1, max_value=500), st.integers(min_value=1, max_value=64))
def test_everything_is_dealt_once_in_order_and_evenly(amount, hands):
    dealt = split_evenly(amount, hands)
    assert [number for hand in dealt for number in hand] == list(range(amount))
    assert len(dealt) == min(amount, hands)
    sizes = [len(hand) for hand in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_sessions_are_open_between_connect_and_close():
    assert LoadCounts(connected=5, closed=2).open == 3
    assert LoadCounts().open == 0


def test_members_count_in_places_of_their_own(board):
    first, last = LoadProcess(Line(), board, 0), LoadProcess(Line(), board, 2)
    for name in ("connected", "connected", "failed"):
        first.count(name)
    last.count("finished")
    width = len(LoadCounts._fields)
    assert LoadCounts(*board[:width]) == LoadCounts(connected=2, failed=1)
    assert LoadCounts(*board[width : 2 * width]) == LoadCounts()
    assert LoadCounts(*board[2 * width :]) == LoadCounts(finished=1)


def test_a_meeting_is_a_word_and_a_wait(board):
    line = Line()
    LoadProcess(line, board, 0).meet()
    assert line.said == [("ready", None), "waits"]


def test_without_collections_nothing_is_collected():
    code = (
        "import gc, weakref\n"
        "from openenv.bench.load import without_gc\n"
        "without_gc()\n"
        "class Ring: pass\n"
        "ring = Ring(); ring.me = ring; alive = weakref.ref(ring); del ring\n"
        "many = [[] for _ in range(200_000)]\n"
        "assert alive() is not None and gc.get_freeze_count() > 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert gc.isenabled()
