"""Servers as actors of a Ray cluster of two nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, UsageError
from openenv.providers import Deployment, LaunchSpec, RayProvider, Resources
from openenv.providers.base import Provider
from openenv.testing import ProviderConformance

from ..docs.page import Page
from ..docs.playing import play_page
from .parts.ray import RayCluster, Unavailable

pytestmark = pytest.mark.real
READY_S, SOON_S = 60.0, 40.0
RECIPE = Path(__file__).parents[2] / "deploy" / "ray" / "job.py"
TRAINER = """
import asyncio, os, ray
from openenv.providers import LaunchSpec, RayProvider

async def main():
    deployment = await RayProvider().launch(LaunchSpec(target="echo", replicas=2))
    await deployment.ready()
    print(deployment.name, flush=True)
    {then}

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of two nodes, which this process is connected to."""
    try:
        with RayCluster() as cluster, pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.variables.items():
                patch.setenv(name, value)
            import ray

            try:
                yield cluster
            finally:
                ray.shutdown()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("cluster")
class TestConformance(ProviderConformance):
    """A server that ends stays ended."""

    def provider(self) -> Provider:
        return RayProvider(max_restarts=0)


class Restarting(ProviderConformance):
    """A server that ends is started again: for the one test to which that matters."""

    restarts = True

    def provider(self) -> Provider:
        return RayProvider(max_restarts=2)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * SOON_S):
            await test()

    asyncio.run(bounded())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    limit = time.monotonic() + SOON_S
    while not await holds():
        assert time.monotonic() < limit, "it does not happen"
        await asyncio.sleep(0.1)


async def play(deployment: Deployment, url: str) -> None:
    async with GenericEnvClient(url, api_key=deployment.api_key) as env:
        await env.reset()
        assert (await env.step({"message": "hi"})).observation["echoed_message"] == "hi"


def processes_of(deployment: Deployment) -> list[int]:
    """Everything on this machine that was started for a deployment: servers, not actors."""
    mark, found = f"OPENENV_DEPLOYMENT={deployment.name}\0".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def gpus_of(pid: int) -> str:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)["CUDA_VISIBLE_DEVICES"]


def actors_of(deployment: Deployment) -> list[int]:
    """The processes of its actors: what has started its servers."""
    servers = processes_of(deployment)
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in servers}
    return sorted(parents - set(servers))


async def has_moved(deployment: Deployment, before: list[str]) -> bool:
    await deployment.refresh()
    return len(deployment.urls) == len(before) and deployment.urls != before


# Placement.


def test_servers_are_spread_over_nodes_or_packed_on_one(cluster: RayCluster) -> None:
    async def test() -> None:
        hosts = {}
        for strategy in ("SPREAD", "STRICT_PACK"):
            spec = LaunchSpec(target="echo", replicas=2, options={"strategy": strategy})
            async with await RayProvider().launch(spec) as deployment:
                hosts[strategy] = {url.rpartition(":")[0] for url in deployment.urls}
        assert hosts["SPREAD"] == {"http://127.0.77.1", "http://127.0.77.2"}
        assert len(hosts["STRICT_PACK"]) == 1

    run(test)


def test_each_server_has_a_gpu_of_its_own(cluster: RayCluster) -> None:
    program = "import os, sys; sys.exit('gpu ' + os.environ['CUDA_VISIBLE_DEVICES'])"

    async def test() -> None:
        spec = LaunchSpec(
            target="echo",
            command=[sys.executable, "-m", "openenv", "serve", "echo"],
            resources=Resources(gpus=2, cpus=0.5, memory="64m"),
            one_per_gpu=True,
            options={"strategy": "STRICT_PACK"},
        )
        async with await RayProvider().launch(spec) as deployment:
            assert {gpus_of(pid) for pid in processes_of(deployment)} == {"0", "1"}
        with pytest.raises(LaunchFailed, match="gpu "):
            await RayProvider(max_restarts=0).launch(
                LaunchSpec(command=[sys.executable, "-c", program], resources=Resources(gpus=1))
            )

    run(test)


def test_no_room_is_said_with_what_is_free_and_nothing_waits_any_longer(cluster: RayCluster) -> None:
    async def test() -> None:
        provider = RayProvider(start_timeout_s=1.0)
        with pytest.raises(LaunchFailed, match=r"no room for 1 server\(s\) of 99 CPU each within 1 s .*free: 16 CPU"):
            await provider.launch(LaunchSpec(target="echo", resources=Resources(cpus=99)))
        assert await provider.leftovers() == []

    run(test)


def test_a_place_of_one_that_was_taken_away_is_used_again(cluster: RayCluster) -> None:
    async def test() -> None:
        provider = RayProvider()
        async with await provider.launch(LaunchSpec(target="echo", replicas=2)) as deployment:
            await deployment.scale(1)
            await deployment.scale(2)
            groups = [each for each in await provider.leftovers() if each.kind == "placement group"]
            assert len(groups) == 1
            await deployment.scale(3)
            assert len(deployment.urls) == 3

    run(test)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": "ANYWHERE"}, "strategy must be one of SPREAD"),
        ({"max_restarts": -1}, "max_restarts must be 0 or more"),
        ({"resources": {"licences": 0}}, "resources must be more than 0"),
        ({"colour": "blue"}, "no option colour"),
    ],
)
def test_options_that_cannot_be_are_refused(cluster: RayCluster, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        RayProvider().deployment(LaunchSpec(target="echo", options=options))


def test_one_port_for_several_servers_is_refused(cluster: RayCluster) -> None:
    with pytest.raises(UsageError, match="one port"):
        RayProvider().deployment(LaunchSpec(target="echo", replicas=2, port=9000))


# What dies.


def test_a_server_that_dies_is_started_again_by_its_actor(cluster: RayCluster) -> None:
    Restarting().test_one_that_crashes_while_it_steps_ends_the_session_and_is_seen_to_be_gone()


def test_a_killed_actor_is_made_again_and_found_by_its_name(cluster: RayCluster) -> None:
    async def test() -> None:
        async with await RayProvider().launch(LaunchSpec(target="echo")) as deployment:
            await deployment.ready()
            before = deployment.urls
            (actor,) = actors_of(deployment)
            servers = processes_of(deployment)
            os.kill(actor, signal.SIGKILL)
            await until(lambda: has_moved(deployment, before))
            await play(deployment, deployment.url)
            assert not set(servers) & set(processes_of(deployment)), "the server of the killed actor lives on"
        assert processes_of(deployment) == []

    run(test)


def test_servers_of_a_lost_node_are_made_again_elsewhere(cluster: RayCluster) -> None:
    node = cluster.add()

    async def test() -> None:
        async with await RayProvider().launch(LaunchSpec(target="echo", replicas=3)) as deployment:
            await deployment.ready()
            before = list(deployment.urls)
            assert len({url.rpartition(":")[0] for url in before}) == 3
            node.kill()
            await until(lambda: has_moved(deployment, before))
            assert not any("127.0.77.3" in url for url in deployment.urls)
            await asyncio.gather(*(play(deployment, url) for url in deployment.urls))

    run(test)


def test_one_that_is_gone_is_replaced_when_the_deployment_is_scaled(cluster: RayCluster) -> None:
    async def test() -> None:
        async with await RayProvider(max_restarts=0).launch(LaunchSpec(target="echo", replicas=2)) as deployment:
            os.kill(actors_of(deployment)[0], signal.SIGKILL)

            async def one_gone() -> bool:
                await deployment.refresh()
                return len(deployment.urls) == 1

            await until(one_gone)
            await deployment.scale(2)
            await asyncio.gather(*(play(deployment, url) for url in deployment.urls))
            assert len(deployment.urls) == 2

    run(test)


def test_one_that_cannot_be_made_again_is_gone(cluster: RayCluster) -> None:
    async def test() -> None:
        async with await RayProvider(max_restarts=0).launch(LaunchSpec(target="echo")) as deployment:
            await deployment.ready()
            (actor,) = actors_of(deployment)
            os.kill(actor, signal.SIGKILL)

            async def gone() -> bool:
                await deployment.refresh()
                return deployment.servers[0].gone is not None

            await until(gone)
            assert deployment.urls == []
            assert await deployment.logs() == ""

    run(test)


# Trainers.


def test_what_a_killed_trainer_left_is_found_and_removed_and_nothing_else(cluster: RayCluster) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER.format(then="await asyncio.Event().wait()")], stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None

    async def test() -> None:
        name = (await asyncio.to_thread(trainer.stdout.readline)).strip()
        provider = RayProvider()
        async with await provider.launch(LaunchSpec(target="echo")) as mine:
            found = await provider.leftovers()
            assert {each.deployment for each in found} == {name, mine.name}
            assert all(each.owner is not None and each.owner.alive for each in found)
            trainer.kill()
            trainer.wait()
            left = [each for each in await provider.leftovers() if each.owner and each.owner.alive is False]
            assert sorted(each.kind for each in left) == ["actor", "actor", "placement group"]
            await provider.discard(left[0])
            await provider.discard(left[0])
            gc = [sys.executable, "-m", "openenv", "providers", "gc", "--provider", "ray"]
            done = await asyncio.to_thread(lambda: subprocess.run(gc, capture_output=True, text=True, check=False))
            assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 removed"), done
            assert {each.deployment for each in await provider.leftovers()} == {mine.name}
            await play(mine, mine.url)
        assert await provider.leftovers() == []

    try:
        run(test)
    finally:
        trainer.kill()
        trainer.communicate()


def test_a_trainer_that_forgets_its_servers_takes_them_along(cluster: RayCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER.format(then="")], capture_output=True, text=True, timeout=READY_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert asyncio.run(RayProvider().leftovers()) == []


def test_the_cluster_of_a_trainer_is_used_and_left_as_it_was(cluster: RayCluster) -> None:
    program = """
import ray
ray.init(namespace="theirs", log_to_driver=False, logging_level="ERROR")
from openenv.client import GenericEnvClient
from openenv.providers import RayProvider
with GenericEnvClient(provider=RayProvider("echo", address="192.0.2.1:1")) as env:
    env.reset()
    assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
assert ray.is_initialized()
assert ray.get_runtime_context().namespace == "theirs"
assert ray.get(ray.remote(lambda: 7).remote()) == 7
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=READY_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_recipe_spreads_its_sessions_over_the_nodes(cluster: RayCluster) -> None:
    command = [sys.executable, str(RECIPE), "--servers", "2", "--sessions", "8", "--steps", "2", "--cpus", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 servers: " in done.stdout
    assert done.stdout.count("4 episodes on ") == 2


def test_a_scaling_run_reaches_every_server_and_leaves_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "openenv", "bench", "scale", "--provider", "ray", "--target", "benchmark"]
    command += ["--replicas", "4", "--cpus", "0.5", "--requests-grid", "80", "--wait-grid", "0", "--reps", "1"]
    command += ["--expected-hosts", "4", "--output-dir", str(tmp_path), "--option", "max_restarts=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "80 sessions were on 4 hosts, 20 to 20 on each" in done.stdout
    assert asyncio.run(RayProvider().leftovers()) == []


def test_the_example_of_the_page_runs(cluster: RayCluster, tmp_path: Path) -> None:
    play_page(Page("docs/how-to/ray.md"), tmp_path, frozenset({"ray"}))


def test_no_secret_is_in_what_ray_tells_of_an_actor(cluster: RayCluster) -> None:
    from ray._private.state import actors

    async def test() -> None:
        async with await RayProvider().launch(LaunchSpec(target="echo")) as deployment:
            assert deployment.api_key is not None
            told = str(await asyncio.to_thread(actors))
            assert deployment.name in told
            assert deployment.api_key not in told

    run(test)


def test_no_cluster_is_said(cluster: RayCluster) -> None:
    program = """
import asyncio
from openenv.errors import ProviderFailed
from openenv.providers import LaunchSpec, RayProvider
try:
    asyncio.run(RayProvider().launch(LaunchSpec(target="echo")))
except ProviderFailed as error:
    assert "ray start --head" in str(error), error
else:
    raise SystemExit("there is a cluster?")
"""
    nowhere = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", program], env=nowhere, timeout=READY_S, check=True)


def test_a_cluster_that_does_not_answer_is_no_wait_without_end() -> None:
    program = """
import asyncio, sys, time
from openenv.errors import ProviderFailed
from openenv.providers import LaunchSpec, RayProvider, ray

async def main():
    provider = RayProvider()
    deployment = await provider.launch(LaunchSpec(target="echo"))
    ray.CALL_S, ray.END_S = 2.0, 3.0
    print("there", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for call in (provider.leftovers, lambda: provider.launch(LaunchSpec(target="echo")), deployment.stop):
        try:
            await call()
        except ProviderFailed as error:
            assert "has not answered for" in str(error), error
    print(time.monotonic() - began, flush=True)

asyncio.run(main())
"""
    try:
        with RayCluster(nodes=1, base="127.0.78") as cluster:
            variables = {**os.environ, **cluster.variables}
            pipe: Any = subprocess.PIPE
            child = subprocess.Popen(
                [sys.executable, "-c", program], env=variables, stdin=pipe, stdout=pipe, text=True
            )
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "there\n"
                frozen = cluster.head.pids()
                for pid in frozen:
                    os.kill(pid, signal.SIGSTOP)
                assert child.stdin is not None
                child.stdin.write("\n")
                child.stdin.flush()
                assert float(child.stdout.readline()) < SOON_S
                cluster.head.kill()
                child.wait(SOON_S)  # also its end is no wait without one
            finally:
                cluster.head.kill()
                child.kill()
                child.communicate()
    except Unavailable as reason:
        pytest.skip(str(reason))
