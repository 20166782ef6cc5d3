"""Places in memory: no two overlap, and what is given back can be had again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from openenv.protocol.buffers import BlockAllocator

SIZE = 4096


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 1500)), max_size=60))
def test_blocks_never_overlap_and_come_back_whole(moves):
    allocator = BlockAllocator(SIZE)
    blocks = []
    for give_back, number in moves:
        if give_back and blocks:
            blocks.pop(number % len(blocks))
        elif (block := allocator.allocate(number)) is not None:
            blocks.append(block)
        spans = sorted((block.offset, block.offset + block.size) for block in blocks)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert all(0 <= start < end <= SIZE and start % 64 == 0 for start, end in spans)
    blocks.clear()
    block = None
    assert allocator.allocate(SIZE).size == SIZE


def test_the_lowest_place_is_taken_so_that_little_memory_is_touched():
    allocator = BlockAllocator(SIZE)
    for _ in range(100):
        block = allocator.allocate(1000)
        assert block.offset in {0, 1024}


def test_memory_that_is_full_gives_nothing_until_a_block_comes_back():
    allocator = BlockAllocator(2048)
    first, second = allocator.allocate(1024), allocator.allocate(1024)
    assert allocator.allocate(1) is None
    del first
    assert allocator.allocate(1025) is None
    assert allocator.allocate(1024).offset == 0
    assert second.offset == 1024
