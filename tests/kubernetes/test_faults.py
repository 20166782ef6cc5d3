"""Faults of a real cluster under servers that play: what is lost, what is told, and how soon."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, NotReady, OpenEnvError

from .conftest import Space
from .parts.programs import until
from .parts.servers import READY_S, at_length, gone, plays, serving

pytestmark = pytest.mark.real

# Seconds after which a server that does not end is forgotten, with those for a slow machine.
FORGOTTEN_S = 60.0


@at_length
async def test_an_api_server_that_crashes_and_comes_back_costs_no_episode(space: Space) -> None:
    cluster = space.cluster
    async with (
        await space.provider(reach="forward").launch(serving(replicas=2)) as forwarded,
        await space.provider().launch(serving()) as direct,
    ):
        await asyncio.gather(forwarded.ready(READY_S), direct.ready(READY_S))
        url = forwarded.servers[0].url
        assert url is not None
        async with GenericEnvClient(url, api_key=forwarded.api_key) as env:
            await env.reset()
            await env.step({"message": "before"})
            cluster.kill_api()
            try:
                step = asyncio.ensure_future(env.step({"message": "meanwhile"}))
                await plays(direct)  # Pods do not need the API server
                for each in (forwarded, direct):
                    await each.refresh()
                    assert [server.gone for server in each.servers] == [None] * len(each.servers)
            finally:
                cluster.start_api()
            await asyncio.to_thread(cluster.until_served)
            assert (await step).observation["message"] == "meanwhile"
            assert (await env.state())["step_count"] == 2  # what was under way was executed once
        # What happens now is told again.
        second = forwarded.servers[1]
        await asyncio.to_thread(space.kubectl, "delete", "pod", second.name, "--grace-period=0", "--force")
        assert "its Pod was deleted" in await gone(forwarded, 30.0, 1)
        assert forwarded.urls == [url]
        await plays(forwarded)


@at_length
async def test_a_cluster_that_remembers_nothing_of_what_was_watched_is_listed_again(space: Space) -> None:
    cluster = space.cluster
    async with await space.provider().launch(serving(replicas=2)) as deployment:
        await deployment.ready(READY_S)
        lost = deployment.servers[1]
        cluster.kill_api()
        try:
            cluster.forget_history(f"/registry/pods/{space.name}/{lost.name}")
        finally:
            cluster.start_api()
        await asyncio.to_thread(cluster.until_served)
        assert "its Pod was deleted" in await gone(deployment, 60.0, 1)
        assert deployment.servers[0].gone is None
        await plays(deployment)


@at_length
async def test_episodes_go_on_while_the_kubelet_is_frozen(space: Space) -> None:
    """A port that is forwarded leads through the kubelet: what is sent there arrives when it goes on."""
    node = space.cluster.node
    async with (
        await space.provider(reach="forward").launch(serving()) as forwarded,
        await space.provider().launch(serving()) as direct,
    ):
        await asyncio.gather(forwarded.ready(READY_S), direct.ready(READY_S))
        async with GenericEnvClient(forwarded.url, api_key=forwarded.api_key) as env:
            await env.reset()
            with node.frozen_kubelet():
                await plays(direct)
                step = asyncio.ensure_future(env.step({"message": "meanwhile"}))
                with pytest.raises(NotReady):
                    await forwarded.ready(2.0)
                assert forwarded.servers[0].gone is None
            assert (await step).observation["message"] == "meanwhile"
            assert (await env.state())["step_count"] == 1


@at_length
async def test_servers_of_a_node_that_answers_nothing_are_given_up_in_time(space: Space) -> None:
    deployment = await space.provider().launch(serving())
    await deployment.ready(READY_S)
    url, key = deployment.url, deployment.api_key
    with space.cluster.node.frozen_kubelet():
        began = time.monotonic()
        with pytest.raises(LaunchFailed, match="got no address within 3 s"):
            await space.provider(start_timeout_s=3.0).launch(serving())
        await deployment.stop()
        assert time.monotonic() - began < 2 * FORGOTTEN_S
        assert await asyncio.to_thread(lambda: space.names) == []

    def closed() -> bool:
        try:
            with GenericEnvClient(url, api_key=key, connect_timeout_s=1.0).sync() as env:
                env.reset()
        except OpenEnvError:
            return True
        return False

    # The kubelet ends the server as soon as it goes on.
    await asyncio.to_thread(until, closed, FORGOTTEN_S, "the server does not end")


@at_length
async def test_a_quota_that_is_used_up_fails_the_launch_and_nothing_is_left_of_it(space: Space) -> None:
    await asyncio.to_thread(space.kubectl, "create", "quota", "few", "--hard=pods=1")

    def counted() -> bool:
        return "pods" in json.loads(space.kubectl("get", "quota", "few", "-o", "json"))["status"].get("used", {})

    await asyncio.to_thread(until, counted, 30.0, "the quota does not hold")
    with pytest.raises(LaunchFailed, match="exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"):
        await space.provider().launch(serving(replicas=2))
    assert space.names == []
    async with await space.provider().launch(serving()) as deployment:
        await deployment.ready(READY_S)
        with pytest.raises(LaunchFailed, match="exceeded quota"):
            await deployment.scale(2)
        await plays(deployment)


@at_length
async def test_a_token_that_was_replaced_is_read_again(space: Space) -> None:
    cluster = space.cluster
    async with await space.provider(reach="forward").launch(serving()) as deployment:
        await deployment.ready(READY_S)
        token = space.kubeconfig.read_text()
        await asyncio.to_thread(space.kubectl, "delete", "serviceaccount", "trainer")
        await asyncio.to_thread(space.kubectl, "create", "serviceaccount", "trainer")

        def refused() -> bool:
            asked = ["--kubeconfig", str(space.kubeconfig), "-n", space.name, "get", "pods"]
            return "nauthorized" in cluster.kubectl(*asked, check=False)

        await asyncio.to_thread(until, refused, 60.0, "the cluster still takes the token of an account that is gone")
        # Until there is another one, no server is given up, and the reason is the cluster's.
        with pytest.raises(NotReady, match="Unauthorized"):
            await deployment.ready(5.0)
        await deployment.refresh()
        assert deployment.servers[0].gone is None
        await asyncio.to_thread(cluster.give_token, space.name)
        assert space.kubeconfig.read_text() != token
        await deployment.ready(READY_S)
        await plays(deployment)
        await asyncio.to_thread(space.kubectl, "delete", "pod", deployment.servers[0].name, "--wait=false")
        assert await gone(deployment, 60.0)
