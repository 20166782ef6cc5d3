"""The empty server, as a process."""

import asyncio

import pytest

from openenv.bench.served import Floor
from openenv.client import GenericEnvClient

from .bench_processes import left_of

pytestmark = pytest.mark.real


async def answers(url):
    async with GenericEnvClient(url) as client:
        return await client.reset(), await client.step({"anything": 1}), await client.step({})


def test_it_answers_everything_with_the_same():
    with Floor() as floor:
        results = asyncio.run(answers(floor.url))
        pids = floor.pids()
        assert floor.resident_bytes() > 1_000_000
    assert [result.reward for result in results] == [1.0] * 3
    assert [result.done for result in results] == [False] * 3
    assert left_of(pids) == []
