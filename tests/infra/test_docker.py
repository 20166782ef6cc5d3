"""Servers in containers, on a Docker engine of the tests' own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, NotReady, OpenEnvError, ProviderBusy, ProviderFailed, StepTimeout, UsageError
from openenv.providers import Deployment, LaunchSpec, LocalDockerProvider, Provider, Resources, StartRate
from openenv.providers import deployment as farewell
from openenv.providers.docker import KEPT_CAPABILITIES
from openenv.providers.docker_engine import PullProgress
from openenv.providers.owner import PROVIDER, OwnerProcess
from openenv.testing import ProviderConformance
from tests.docs.page import Page
from tests.docs.playing import play_page
from tests.infra.parts.dockerd import Dockerd, dockerd
from tests.infra.parts.image import QUICK, built, quick
from tests.infra.parts.registry import refusing, registry

pytestmark = pytest.mark.real

# This kernel's other platforms are not to be had everywhere; nor is gVisor's own network.
RUNSC = {"path": shutil.which("runsc") or "runsc", "runtimeArgs": ["--platform=ptrace", "--network=host"]}
# What that network does not have.
SERVE_IN_GVISOR = """
import socket, sys
del socket.TCP_QUICKACK
from openenv.cli import main
sys.argv = ["openenv", "serve", "echo", "--host", "0.0.0.0", "--port", "8000"]
main()
"""
# With an init, what is stopped before it listens for signals ends at once.
INIT = {"init": True} if shutil.which("docker-init") else {}
READY_S = 120.0  # not 30: the machine is full of other tests
HERE: dict[str, Any] = {**QUICK.options, **INIT, "command": QUICK.serve, "ready_timeout_s": READY_S}
TRAINER = f"""
import asyncio, signal, sys
from openenv.providers import LaunchSpec, LocalDockerProvider

async def main():
    provider = LocalDockerProvider(env_vars={QUICK.variables!r}, **{HERE!r})
    deployment = await provider.launch(LaunchSpec(image={QUICK.image!r}, replicas=2, options=OPTIONS))
    print(deployment.name, flush=True)
    END

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Dockerd]:
    pytest.importorskip("docker")
    with dockerd(runtimes={"runsc": RUNSC}) as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.host)
        yield daemon


@pytest.fixture(scope="module")
def engine(daemon: Dockerd) -> Iterator[Any]:
    engine = daemon.client()
    quick(engine)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Any) -> Iterator[None]:
    """No test leaves a container, a network or a volume."""
    yield
    assert engine.containers.list(all=True) == []
    assert {network.name for network in engine.networks.list()} == {"bridge", "host", "none"}
    assert engine.volumes.list() == []


@pytest.fixture
def provider(engine: Any) -> Iterator[LocalDockerProvider]:
    with docker() as provider:
        yield provider


def docker(**options: Any) -> LocalDockerProvider:
    """A provider whose containers serve the echo environment, unless something else is said."""
    return LocalDockerProvider(env_vars=QUICK.variables, **{**HERE, **options})


SPEC = LaunchSpec(image=QUICK.image)


def play(deployment: Deployment, message: str = "hi") -> str:
    with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
        env.reset()
        echoed: str = env.step({"message": message}).observation["echoed_message"]
        return echoed


def inside(engine: Any, deployment: Deployment, code: str, **options: Any) -> str:
    """What a piece of Python prints in the first container of a deployment."""
    container = engine.containers.get(deployment.servers[0].name)
    said: str = container.exec_run([sys.executable, "-c", code], **options).output.decode()
    return said


@pytest.mark.usefixtures("engine")
class TestLocalDocker(ProviderConformance):
    def provider(self) -> Provider:
        return LocalDockerProvider(**QUICK.options, **INIT)

    def spec(self, behaviour: str) -> LaunchSpec:
        command = [sys.executable, "-m", "openenv.testing.misbehaving", behaviour]
        variables = {**QUICK.variables, "HOST": "0.0.0.0", "PORT": "8000"}
        return LaunchSpec(image=QUICK.image, command=command, env_vars=variables)


# As programs use it.


def test_an_episode_in_a_container_from_a_plain_program(provider: LocalDockerProvider, engine: Any) -> None:
    env = GenericEnvClient.from_docker_image(QUICK.image, provider, ready_timeout_s=READY_S)
    env.reset()
    assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    (container,) = engine.containers.list(filters={"label": PROVIDER})
    assert container.name.startswith("openenv-openenv-test-empty-")
    assert container.ports["8000/tcp"][0]["HostIp"] == "127.0.0.1"
    with pytest.raises(RuntimeError, match="key"):
        GenericEnvClient(env.base_url).reset()
    env.close()
    assert engine.containers.list(all=True) == []
    env.close()


async def test_in_an_asynchronous_block(engine: Any) -> None:
    variables = QUICK.variables
    async with GenericEnvClient.from_docker_image(QUICK.image, env_vars=variables, **HERE) as env:
        assert (await env.reset()).done is False
    assert engine.containers.list(all=True) == []


def test_containers_from_several_threads(engine: Any) -> None:
    def episode(number: int) -> str:
        with GenericEnvClient.from_docker_image(QUICK.image, env_vars=QUICK.variables, **HERE) as env:
            env.reset()
            echoed: str = env.step({"message": str(number)}).observation["echoed_message"]
            return echoed

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(episode, range(4))) == ["0", "1", "2", "3"]


def test_a_key_that_was_chosen_is_shown_by_the_client(provider: LocalDockerProvider) -> None:
    variables = {"OPENENV_API_KEYS": "control:a-key-that-is-long-enough"}
    with GenericEnvClient.from_docker_image(
        QUICK.image, provider, env_vars=variables, ready_timeout_s=READY_S
    ) as env:
        env.reset()
        assert provider.api_key == "a-key-that-is-long-enough"


def test_who_starts_a_container_by_hand_needs_no_key(provider: LocalDockerProvider) -> None:
    url = provider.start_container(QUICK.image)
    provider.wait_for_ready(url, 120.0)
    with GenericEnvClient(url) as env:
        env.reset()
    assert provider.api_key is None


def test_a_container_that_ends_says_why_at_once(engine: Any) -> None:
    command = QUICK.running("import os, sys; print('no model at', os.environ['MODEL_TOKEN']); sys.exit(7)")
    with docker(command=command) as provider, pytest.raises(LaunchFailed, match="exit code 7") as caught:
        GenericEnvClient.from_docker_image(
            QUICK.image, provider, env_vars={"MODEL_TOKEN": "hush-hush"}, ready_timeout_s=60.0
        )
    assert "no model at ***" in str(caught.value)
    assert "hush-hush" not in str(caught.value)


def test_a_container_that_never_becomes_ready(engine: Any) -> None:
    thinking = "import signal, sys; signal.signal(15, sys.exit); print('thinking', flush=True); signal.pause()"
    with docker(command=QUICK.running(thinking)) as provider:
        with pytest.raises(NotReady, match=r"within [\d.]+ s(.|\n)*thinking"):
            GenericEnvClient.from_docker_image(QUICK.image, provider, ready_timeout_s=1.0)


def test_a_container_that_is_removed_under_its_client(provider: LocalDockerProvider, engine: Any) -> None:
    env = GenericEnvClient.from_docker_image(QUICK.image, provider, connect_timeout_s=1.0, ready_timeout_s=READY_S)
    env.reset()
    (container,) = engine.containers.list()
    container.remove(force=True)
    with pytest.raises(StepTimeout, match="connection is lost"):
        env.step({"message": "hi"}, timeout_s=2.0)
    assert provider.current is not None
    (server,) = asyncio.run(provider.current.refresh())
    assert server.gone == "was removed"
    env.close()


def test_what_is_no_argument_and_what_runs_already(provider: LocalDockerProvider) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        provider.start_container(QUICK.image, nonsense=1)
    with pytest.raises(UsageError, match="env_vars"):
        provider.start_container(QUICK.image, environment={"A": "b"})
    with pytest.raises(LaunchFailed, match="nothing-to-run"):
        provider.start_container(QUICK.image, command=["/nothing-to-run"], init=False)
    provider.start_container(QUICK.image)
    with pytest.raises(UsageError, match="already"):
        provider.start_container(QUICK.image)


def test_a_port_of_ones_own_and_one_that_is_taken(provider: LocalDockerProvider) -> None:
    url = provider.start_container(QUICK.image)
    port = int(url.rpartition(":")[2])
    with docker() as other, pytest.raises(LaunchFailed, match="allocated|in use") as caught:
        other.start_container(QUICK.image, port)
    assert not isinstance(caught.value, ProviderBusy)
    provider.stop_container()
    provider.stop_container()
    assert provider.start_container(QUICK.image, port) == url
    provider.wait_for_ready(url, 120.0)


def test_a_name_that_somebody_else_has_is_left_to_them(provider: LocalDockerProvider, engine: Any) -> None:
    theirs = engine.containers.create(QUICK.image, ["true"], name="theirs")
    with pytest.raises(LaunchFailed, match="theirs"):
        provider.start_container(QUICK.image, name="theirs")
    theirs.reload()
    theirs.remove()


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(ProviderFailed, match="DOCKER_HOST"):
        LocalDockerProvider()


# What containers may do.


async def test_what_a_container_may_use_is_limited(provider: LocalDockerProvider, engine: Any) -> None:
    limits = Resources(cpus=0.5, memory="256m", processes=64)
    async with await provider.launch(SPEC.changed(resources=limits)) as deployment:
        asked = engine.containers.get(deployment.servers[0].name).attrs["HostConfig"]
    assert (asked["NanoCpus"], asked["PidsLimit"]) == (500_000_000, 64)
    assert asked["Memory"] == asked["MemorySwap"] == 256 << 20


async def test_one_that_takes_too_much_memory_is_told_so(engine: Any) -> None:
    greedy = "block = b'1' * (200 << 20); import signal; signal.pause()"
    with docker(command=QUICK.running(greedy)) as provider:
        async with await provider.launch(SPEC.changed(resources=Resources(memory="48m"))) as deployment:
            with pytest.raises(LaunchFailed, match=r"exit code 137: it exceeded its memory limit"):
                await deployment.ready()


async def test_privileges_are_few_and_cannot_be_had_back(provider: LocalDockerProvider, engine: Any) -> None:
    async with await provider.launch(SPEC) as deployment:
        status = inside(engine, deployment, "print(open('/proc/1/status').read())")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1"
    assert int(facts["CapBnd"], 16).bit_count() == len(KEPT_CAPABILITIES)
    none = {"cap_drop": ["ALL"], "user": "1000:1000", "read_only": True}
    async with await provider.launch(SPEC.changed(options=none)) as deployment:
        await deployment.ready()
        status = inside(engine, deployment, "print(open('/proc/1/status').read())")
        assert "CapBnd:\t0000000000000000" in status
        assert "Uid:\t1000" in status
        assert "Read-only file system" in inside(engine, deployment, "open('/root.txt', 'w')")
        assert inside(engine, deployment, "open('/tmp/a', 'w').write('a'); print('ok')") == "ok\n"


async def test_capabilities_are_added_to_the_few(provider: LocalDockerProvider, engine: Any) -> None:
    async with await provider.launch(SPEC.changed(options={"cap_add": ["SYS_PTRACE"]})) as deployment:
        asked = engine.containers.get(deployment.servers[0].name).attrs["HostConfig"]
    assert asked["CapDrop"] == ["ALL"]
    assert asked["CapAdd"] == [*KEPT_CAPABILITIES, "SYS_PTRACE"]


def test_without_a_network_only_this_machine_reaches_it(provider: LocalDockerProvider, engine: Any) -> None:
    with asyncio.run(provider.launch(SPEC.changed(options={"network": "none"}))) as deployment:
        asyncio.run(deployment.ready())
        assert play(deployment) == "hi"
        container = engine.containers.get(deployment.servers[0].name)
        assert not container.ports.get("8000/tcp")
        (network,) = container.attrs["NetworkSettings"]["Networks"]
        assert engine.networks.get(network).attrs["Internal"] is True
        found = asyncio.run(provider.leftovers())
        assert {(each.kind, each.deployment) for each in found} == {
            ("container", deployment.name),
            ("network", deployment.name),
        }
    with pytest.raises(UsageError, match="leave out one"):
        provider.start_container(QUICK.image, 4711, network="none")


def test_a_runtime_that_the_engine_has_and_one_that_it_has_not(provider: LocalDockerProvider, engine: Any) -> None:
    with pytest.raises(UsageError, match="no runtime 'kata'.* runc"):
        provider.start_container(QUICK.image, runtime="kata")
    if shutil.which("runsc") is None:
        pytest.skip("gVisor is not installed: apt-get install runsc")
    command = QUICK.running(SERVE_IN_GVISOR)
    spec = SPEC.changed(options={"runtime": "runsc", "command": command})
    with asyncio.run(provider.launch(spec)) as deployment:
        asyncio.run(deployment.ready())
        assert play(deployment) == "hi"
        assert engine.containers.get(deployment.servers[0].name).attrs["HostConfig"]["Runtime"] == "runsc"


async def test_gpus_that_there_are_not(provider: LocalDockerProvider) -> None:
    with pytest.raises(LaunchFailed, match="could not select device driver") as caught:
        await provider.launch(SPEC.changed(resources=Resources(gpus=1)))
    assert not isinstance(caught.value, ProviderBusy)


# Images.


async def test_an_image_is_fetched_and_its_fetching_can_be_watched(engine: Any, tmp_path: Path) -> None:
    seen: list[PullProgress] = []
    with registry(tmp_path) as place:
        name = f"{place}/team/echo:2"
        container = engine.containers.create(QUICK.image, ["true"])
        container.put_archive("/tmp", _heavy())
        container.commit(repository=f"{place}/team/echo", tag="2")
        container.remove()
        engine.images.push(f"{place}/team/echo", tag="2")
        engine.images.remove(name)
        try:
            with docker(progress=seen.append) as provider:
                async with await provider.launch(LaunchSpec(image=name, replicas=3)) as deployment:
                    await deployment.ready()
                with pytest.raises(LaunchFailed, match=r"no-such-tag|manifest unknown") as caught:
                    await provider.launch(LaunchSpec(image=f"{place}/team/echo:no-such-tag"))
                assert not isinstance(caught.value, ProviderBusy)
        finally:
            engine.images.remove(name, force=True)
    last = [each for each in seen if each.finished]
    assert len(last) == 1  # three servers, and it was fetched once
    assert last[0].done == last[0].layers >= 2
    assert last[0].received == last[0].total > 1 << 20
    assert str(last[0]).startswith(f"pulled {name}: ")


def _heavy() -> bytes:
    import io
    import os
    import tarfile

    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        entry = tarfile.TarInfo("weights")
        entry.size = 4 << 20
        tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    return tree.getvalue()


@pytest.mark.parametrize(
    ("status", "code", "busy"),
    [
        (429, "TOOMANYREQUESTS", True),
        (503, "UNAVAILABLE", True),
        (403, "DENIED", False),
        (404, "NAME_UNKNOWN", False),
    ],
)
async def test_a_registry_that_refuses(engine: Any, status: int, code: str, busy: bool) -> None:
    with refusing(status, code) as place, docker(start_rate=StartRate(attempts=1)) as provider:
        with pytest.raises(LaunchFailed, match=place) as caught:
            await provider.launch(LaunchSpec(image=f"{place}/team/echo:1"))
    assert isinstance(caught.value, ProviderBusy) is busy, str(caught.value)


def test_an_image_that_there_is_not(provider: LocalDockerProvider) -> None:
    with pytest.raises(LaunchFailed, match="127.0.0.1:1/nothing"):
        provider.start_container("127.0.0.1:1/nothing:here")


@pytest.fixture(scope="module")
def benchmark(engine: Any) -> str:
    return built(engine, "benchmark")


def test_the_image_of_the_benchmark_environment(engine: Any, benchmark: str) -> None:
    image = engine.images.get(benchmark)
    base = engine.images.get("python:3.12-slim")
    assert image.attrs["Size"] - base.attrs["Size"] < 200_000_000
    began = time.monotonic()
    container = engine.containers.run(benchmark, detach=True)
    try:
        while container.attrs["State"].get("Health", {}).get("Status") != "healthy":
            assert time.monotonic() - began < 30.0, container.logs().decode()
            container.reload()
        assert container.exec_run("id -u").output.decode().strip() == "1000"
    finally:
        container.remove(force=True)


async def test_the_benchmark_environment_runs_with_as_little_as_can_be(engine: Any, benchmark: str) -> None:
    options = {"read_only": True, "cap_drop": ["ALL"], "network": "none"}
    limits = Resources(cpus=1, memory="256m", processes=64)
    with LocalDockerProvider(resources=limits, **options) as provider:
        async with await provider.launch(LaunchSpec(image=benchmark, resources=limits)) as deployment:
            await deployment.ready()
            async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
                await env.reset()
                assert (await env.step({"wait_seconds": 0.0})).done is False


def test_the_example_of_the_page_runs(engine: Any, benchmark: str, tmp_path: Path) -> None:
    engine.images.get(benchmark).tag("my-env", "1")
    play_page(Page("docs/providers.md"), tmp_path, frozenset({"docker"}))


# Many, and those that are ready before.


@pytest.mark.alone
def test_thirty_two_in_parallel_none_lost_and_none_left(engine: Any) -> None:
    async def test() -> None:
        with docker() as provider:
            deployments = await asyncio.gather(*(provider.launch(SPEC) for _ in range(32)))
            async with contextlib.AsyncExitStack() as stack:  # a failure leaves none for the tests behind this one
                for deployment in deployments:
                    stack.push_async_callback(deployment.stop)
                await asyncio.gather(*(deployment.ready(120.0) for deployment in deployments))
                assert len({deployment.url for deployment in deployments}) == 32
                assert len({deployment.api_key for deployment in deployments}) == 32
                assert len(engine.containers.list()) == 32
                told = await asyncio.gather(*(episode(each, str(number)) for number, each in enumerate(deployments)))
                assert told == [str(number) for number in range(32)]
                await asyncio.gather(*(deployment.stop() for deployment in deployments))

    async def episode(deployment: Deployment, message: str) -> Any:
        async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
            await env.reset()
            return (await env.step({"message": message})).observation["echoed_message"]

    asyncio.run(test())


def test_warm_containers_are_there_before_and_each_is_had_by_one(engine: Any) -> None:
    def names() -> set[str]:
        return {container.name for container in engine.containers.list()}

    async def test() -> None:
        assert provider.pool is not None
        await provider.pool.filled()
        waiting = names()
        assert len(waiting) == 3
        deployments = [await provider.launch(SPEC) for _ in range(3)]
        assert {deployment.servers[0].name for deployment in deployments} == waiting
        assert len({deployment.api_key for deployment in deployments}) == 3
        assert len({deployment.url for deployment in deployments}) == 3
        for number, deployment in enumerate(deployments):
            async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
                await env.reset()
                assert (await env.step({"message": str(number)})).observation["echoed_message"] == str(number)
        await provider.pool.filled()  # others in their place
        assert len(names()) == 6
        await asyncio.gather(*(deployment.stop() for deployment in deployments))

    with docker(image=QUICK.image, warm=3) as provider:
        asyncio.run(test())
        assert provider.pool is not None
        provider.pool.wait_filled()
        waiting = names()
        with GenericEnvClient.from_docker_image(QUICK.image, provider, ready_timeout_s=READY_S) as env:
            env.reset()
        assert len(waiting - names()) == 1  # that one was had, and is gone
        provider.pool.wait_filled()


def test_a_warm_container_is_never_given_to_two(engine: Any) -> None:
    with docker(image=QUICK.image, warm=2) as provider:
        assert provider.pool is not None
        provider.pool.wait_filled()
        with ThreadPoolExecutor(5) as threads:
            deployments = list(threads.map(lambda _: asyncio.run(provider.launch(SPEC)), range(5)))
        assert len({deployment.url for deployment in deployments}) == 5
        for deployment in deployments:
            asyncio.run(deployment.ready())
            deployment.wait(deployment.stop())


def test_a_warm_container_that_broke_is_replaced(engine: Any) -> None:
    with docker(image=QUICK.image, warm=1) as provider:
        assert provider.pool is not None
        provider.pool.wait_filled()
        (broken,) = engine.containers.list()
        broken.kill()
        deployment = asyncio.run(provider.launch(SPEC))  # sooner than anybody has looked at it
        asyncio.run(deployment.ready())
        assert play(deployment) == "hi"
        deployment.wait(deployment.stop())
        provider.pool.wait_filled()
        (waiting,) = engine.containers.list()
        waiting.kill()
        limit = time.monotonic() + 20.0
        while waiting in engine.containers.list(all=True, ignore_removed=True):  # noticed by the pool itself
            assert time.monotonic() < limit
        provider.pool.wait_filled()


def test_a_pool_of_what_cannot_be_started_says_why(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="image"):
        docker(warm=2)
    with docker(image=QUICK.image, warm=2, command=["/nothing-to-run"]) as provider:
        assert provider.pool is not None
        with pytest.raises(LaunchFailed, match="nothing-to-run"):
            provider.pool.wait_filled()
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []  # no failure unheard


# When somebody dies.


def test_an_engine_that_dies_in_the_midst(engine: Any) -> None:
    async def test(own: Dockerd) -> None:
        provider = docker(start_rate=StartRate(attempts=1))
        deployment = await provider.launch(SPEC)
        await deployment.ready()
        many = [asyncio.ensure_future(provider.launch(SPEC)) for _ in range(16)]
        await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        own.kill()
        outcomes = await asyncio.gather(*many, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert failures
        assert all(isinstance(failure, LaunchFailed) for failure in failures), failures
        with pytest.raises(OpenEnvError, match="engine does not answer"):
            await deployment.refresh()
        with pytest.raises(LaunchFailed, match="engine does not answer"):
            await deployment.stop()
        provider.close()

    with dockerd() as own, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", own.host)
        client = own.client()
        quick(client)
        client.close()
        asyncio.run(test(own))
        farewell.live_deployments.clear()  # what cannot be removed any more is not tried again when the tests end


def test_what_a_killed_program_left_is_found_and_removed_and_nothing_else(
    provider: LocalDockerProvider, engine: Any
) -> None:
    async def test() -> None:
        async with await provider.launch(SPEC) as mine:
            name = _trainer("import os; os.kill(os.getpid(), signal.SIGKILL)", "{'network': 'none'}")
            found = await provider.leftovers()
            theirs = [each for each in found if each.owner is not None and each.owner.alive is False]
            assert {each.deployment for each in theirs} == {name}
            assert sorted(each.kind for each in theirs) == ["container", "container", "network"]
            assert [each.deployment for each in found if each not in theirs] == [mine.name]
            assert all(each.owner == OwnerProcess.this() for each in found if each not in theirs)
            for each in sorted(theirs, key=lambda each: each.kind):
                await provider.discard(each)
                await provider.discard(each)
            assert [each.deployment for each in await provider.leftovers()] == [mine.name]

    asyncio.run(test())


@pytest.mark.parametrize("end", ["pass", "import os; os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(60)"])
def test_a_program_that_ends_or_is_interrupted_removes_its_containers(engine: Any, end: str) -> None:
    _trainer(end, "{}")


def _trainer(end: str, options: str) -> str:
    """Runs a program that starts two servers; returns the name of their deployment."""
    program = TRAINER.replace("END", end).replace("OPTIONS", options)
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode in {0, 1, -signal.SIGKILL, -signal.SIGINT}, outcome.stderr
    assert outcome.stdout.strip(), outcome.stderr
    return outcome.stdout.strip()
