"""Memory that is used again: never while any of what was made of it is still there."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.protocol.buffers import ReadBuffers, array_of_rows

SIZE = 4096


def filled(number, size=SIZE):
    return np.full((4, size // 4), number % 251, np.uint8)


def place(array):
    return array.__array_interface__["data"][0]


def test_memory_of_an_array_that_is_gone_is_used_again():
    buffers = ReadBuffers()
    places = set()
    for number in range(20):
        copy = buffers.copy(filled(number))
        assert copy.tobytes() == filled(number).tobytes()
        assert copy.flags.writeable
        places.add(place(copy))
    assert len(places) == 2  # the next copy is made while the last one is there


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array,
        lambda array: array[1, 5:],
        lambda array: array.reshape(-1).view(np.int16)[::3],
        lambda array: memoryview(array.reshape(-1))[2:],
        lambda array: np.from_dlpack(array)[:2],
        lambda array: pytest.importorskip("torch").from_numpy(array)[3],
        lambda array: iter(array),
    ],
    ids=["array", "row", "view", "memory", "dlpack", "torch", "iterator"],
)
def test_memory_is_not_used_again_while_a_part_of_the_array_is_there(keep):
    buffers = ReadBuffers()
    first = buffers.copy(filled(1))
    where = place(first)
    part = keep(first)
    del first
    others = [buffers.copy(filled(number)) for number in range(2, 9)]
    assert where not in map(place, others)
    assert len(set(map(place, others))) == len(others)
    del part
    gc.collect()
    assert where in {place(buffers.copy(filled(9))) for _ in range(8)}


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([SIZE, 2 * SIZE, 3 * SIZE]), st.integers(0, 99)), max_size=80)
)
def test_arrays_keep_their_values_in_any_order_of_use(moves):
    buffers = ReadBuffers(most_bytes=10 * SIZE)
    kept = []
    for number, (drop, size, place_) in enumerate(moves):
        if drop and kept:
            kept.pop(place_ % len(kept))
        else:
            kept.append((number, size, buffers.copy(filled(number, size))))
        assert all(array.tobytes() == filled(made, size).tobytes() for made, size, array in kept)


def test_rows_of_one_array_are_that_array_and_others_are_none():
    whole = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    again = array_of_rows(list(whole[1:]))
    assert np.shares_memory(again, whole)
    assert again.tolist() == whole[1:].tolist()
    assert array_of_rows([whole[2].reshape(2, 3)]).tolist() == [whole[2].tolist()]
    empty, fixed = np.zeros((3, 0, 5)), np.ones((3, 4))
    fixed.flags.writeable = False
    mixed = [whole[0], whole[1].copy()]
    for rows in (list(empty), list(fixed), list(whole[::-1]), list(whole[::2]), list(whole.transpose(1, 0, 2))):
        assert array_of_rows(rows) is None
    for rows in (mixed, [whole[0].copy()], [[1], [2]], [whole[0], [1]], list(whole[0, 0])):
        assert array_of_rows(rows) is None
    assert array_of_rows([whole[0], whole[1].view(np.uint16)]) is None
    assert array_of_rows([whole[0], whole[1].T]) is None
