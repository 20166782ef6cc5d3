"""A seed that an environment cannot take is not dropped in silence."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient, memory, payloads
from openenv.errors import SeedIgnored
from openenv.types import Observation

from ..environments import Plain
from .environments import Counter, CounterEnv, app_of, plain_app
from .scripted import ScriptedApp, outcome


@pytest.fixture(params=[None, "openenv.v2.json", "openenv.v2.msgpack"])
def version(request, monkeypatch):
    """What client and server speak."""
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    return request.param


@pytest.fixture(autouse=True)
def nobody_was_told(monkeypatch):
    monkeypatch.setattr(payloads, "_warned", set())


class Seedless(Plain):
    """Says in its replies what the server says of one that takes no seed."""

    def reset(self, **arguments):
        return Observation(metadata={"seedable": False})


async def test_it_is_warned_about_once_for_a_class_and_a_server(version):
    class Other(GenericEnvClient):
        pass

    app = plain_app(Seedless)
    for cls, told in ((GenericEnvClient, 1), (GenericEnvClient, 0), (Other, 1)):
        async with cls(app=app) as env:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                await env.reset(seed=1)
                await env.reset(seed=2)
        assert [warning.category for warning in caught] == [SeedIgnored] * told
        if told:
            assert "the seed 1 was ignored" in str(caught[0].message)
    async with GenericEnvClient(app=plain_app(Seedless)) as env:
        with pytest.warns(SeedIgnored):
            await env.reset(seed=1)


async def test_for_who_is_strict_it_is_an_error_each_time(version):
    async with GenericEnvClient(app=plain_app(Seedless), strict=True) as env:
        for seed in (0, 1):
            with pytest.raises(SeedIgnored, match=f"the seed {seed} was ignored.*reset") as caught:
                await env.reset(seed=seed)
            assert (caught.value.blame, caught.value.retryable) == ("client", False)
        assert (await env.step({})).error is None


@pytest.mark.parametrize("arguments", [{}, {"seed": None}])
async def test_without_a_seed_there_is_nothing_to_say(version, arguments):
    async with GenericEnvClient(app=plain_app(Seedless), strict=True) as env:
        await env.reset(**arguments)


async def test_who_takes_it_is_not_spoken_of(version):
    async with CounterEnv(app=app_of(Counter), strict=True) as env:
        assert (await env.reset(seed=3)).metadata == {"seed": 3}
    async with VectorEnvClient(CounterEnv, app=app_of(Counter), num_envs=2, strict=True) as envs:
        assert [result.metadata for result in await envs.reset(seeds=[3, 4])] == [{"seed": 3}, {"seed": 4}]


async def test_a_vector_says_it_once_for_all(version):
    async with VectorEnvClient(GenericEnvClient, app=plain_app(Seedless, 3), num_envs=3) as envs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await envs.reset(seeds=[None, 5, 6])
            await envs.reset(seed=7)
        assert [str(warning.message)[:10] for warning in caught] == ["the seed 5"]


async def test_a_vector_that_is_strict(version):
    app = plain_app(Seedless, 2)
    async with VectorEnvClient(GenericEnvClient, app=app, num_envs=2, strict=True) as envs:
        with pytest.raises(SeedIgnored):
            await envs.reset(seeds=[None, 5])
        assert [result.error for result in await envs.step([{}, {}])] == [None, None]
        await envs.send_reset(seeds=[None, 5])
        told = {env_id: result.error for env_id, result in await envs.recv(min_ready=2)}
        assert (told[0], type(told[1])) == (None, SeedIgnored)
        assert [result.error for result in await envs.step([{}, {}])] == [None, None]


@pytest.mark.parametrize("metadata", [None, 5, {}, {"seedable": True}, {"seedable": 0}])
async def test_what_says_nothing_about_it_is_no_reason_to_speak(metadata):
    app = ScriptedApp()
    env = GenericEnvClient(app=app, strict=True)
    reset = asyncio.create_task(env.reset(seed=1))
    peer = await app.peer()
    peer.reply(await peer.asked(2), {**outcome(), "metadata": metadata})
    await reset
    await env.close()
