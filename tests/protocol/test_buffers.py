"""Memory that is used again: never while any of what was made of it is still there."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.protocol.buffers import ArrayRows, ReadBuffers

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


def test_rows_are_written_again_when_nothing_of_the_array_is_left():
    rows = ArrayRows("image", (2, 4, SIZE // 4), np.uint8)
    places, kept = [], []
    for number in range(12):
        rows.begin()
        observations = [{"image": filled(number + index)} for index in range(2)]
        for index, observation in enumerate(observations):
            rows.take(index, observation)
            assert observation["image"] is rows.rows[index]
        array = rows.array()
        assert array.tobytes() == filled(number).tobytes() + filled(number + 1).tobytes()
        places.append(place(array))
        if number in (3, 4):
            kept.append((number, array[1, 2:]))
        del array
    assert len(set(places)) == 3
    for number, part in kept:
        assert part.tobytes() == filled(number + 1)[2:].tobytes()


@pytest.mark.parametrize(
    "observation",
    [{}, None, {"image": None}, {"image": [1]}, {"image": filled(1).T}, {"image": filled(1).astype(np.int8)}],
    ids=["none", "no observation", "null", "list", "shape", "type"],
)
def test_rows_leave_what_does_not_fit(observation):
    rows = ArrayRows("image", (2, 4, SIZE // 4), np.uint8)
    rows.begin()
    before = rows.array().copy()
    same = dict(observation) if observation is not None else None
    rows.take(0, observation)
    assert observation is None or all(observation[name] is same[name] for name in same)
    assert rows.array().tobytes() == before.tobytes()
