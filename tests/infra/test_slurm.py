"""The Slurm provider on a real cluster: a controller and nodes, each in a network of its own."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from openenv import GenericEnvClient
from openenv.errors import CapacityError, ConnectionFailed, LaunchFailed, NotReady, ProviderBusy
from openenv.providers import Deployment, LaunchSpec, Provider, Resources, SlurmProvider, StartRate
from openenv.providers.readiness import until_ready
from openenv.providers.slurm.commands import run
from openenv.testing import ProviderConformance
from openenv.testing.misbehaving import CRASH_CODE, LAST_WORDS
from tests.infra.parts.slurm import Slurm, SlurmNode, Unavailable

pytestmark = pytest.mark.real

EXPIRING = "expiring"
# Slurm starts a task again when its credentials of before are void.
AGAIN_S = 60.0
RECIPE = Path(__file__).parents[2] / "deploy" / "slurm"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(Slurm(nodes=3, gpus=2))
        except Unavailable as reason:
            pytest.skip(f"no Slurm here: {reason}")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in cluster.variables.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def expiry(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[str | None]]:
    """What becomes of a server whose time is over after a minute, which is the least that Slurm knows.

    It is looked at beside the tests, so that it makes them no longer.
    """
    provider = SlurmProvider(shared_folder=tmp_path_factory.mktemp("expiry"), time_limit="1", grace_s=25, nodes="n2")

    async def life() -> str | None:
        async with await provider.launch(LaunchSpec(target="echo", name=EXPIRING)) as deployment:
            async with _client(deployment) as env:
                await env.reset()
                await _refused(deployment, 60.0)
                await env.step({"message": "still here"})
                assert len(deployment.urls) == 1
            await _until(deployment, lambda: deployment.servers[0].gone is not None)
            return deployment.servers[0].gone

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: asyncio.run(life()))


@pytest.mark.usefixtures("slurm")
class TestSlurmProvider(ProviderConformance):
    moments: ClassVar = (0.1, 1.2)
    folder: ClassVar[Path]

    @pytest.fixture(autouse=True)
    def shared(self, tmp_path: Path) -> None:
        type(self).folder = tmp_path / "shared"

    def provider(self) -> Provider:
        return SlurmProvider(shared_folder=self.folder)

    async def look_for_remains(self, provider: Provider, deployment: Deployment) -> list[str]:
        return [str(path) for path in self.folder.glob("*")]


def _client(deployment: Deployment, number: int = 0, **options: Any) -> GenericEnvClient:
    return GenericEnvClient(deployment.urls[number], api_key=deployment.api_key, **options)


async def _play(deployment: Deployment, number: int = 0) -> None:
    async with _client(deployment, number) as env:
        await env.reset()
        assert (await env.step({"message": "hello"})).observation["echoed_message"] == "hello"


def _jobs(slurm: Slurm) -> list[str]:
    """All jobs but that one, which all tests of this file live beside."""
    return [job for job in slurm.jobs() if EXPIRING not in job]


def _inside(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def _true(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(15.0):
        while not holds():  # noqa: ASYNC110 - Slurm calls nobody back
            await asyncio.sleep(0.05)


async def _until(deployment: Deployment, holds: Callable[[], bool], limit_s: float = 15.0) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while True:
                await deployment.refresh()
                if holds():
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        tasks = [(each.url, each.gone, each.handle and await each.handle[1].notices()) for each in deployment.servers]
        jobs = await run("scontrol", "show", "job")
        raise AssertionError(f"not within {limit_s:g} s; {tasks}\n{jobs}") from None


def test_a_server_that_is_requeued_is_found_at_its_new_address(slurm: Slurm, tmp_path: Path) -> None:
    async def test() -> None:
        provider = SlurmProvider("echo", shared_folder=tmp_path)
        async with await provider.launch(LaunchSpec(target="echo", replicas=2)) as deployment:
            await deployment.ready()
            first, second = deployment.servers
            before, other = first.url, second.url
            slurm.run("scontrol", "requeue", first.handle[0])
            await _until(deployment, lambda: first.url is None)
            assert deployment.urls == [other]
            assert first.gone is None
            await _until(deployment, lambda: first.url not in {before, None}, AGAIN_S)
            await deployment.ready()
            await _play(deployment)
        assert _jobs(slurm) == []

    asyncio.run(test())


def test_a_server_whose_node_is_lost_is_started_on_another(slurm: Slurm, tmp_path: Path) -> None:
    async def test() -> None:
        first, second, third = slurm.nodes
        provider = SlurmProvider(shared_folder=tmp_path, exclude=f"{first.name},{third.name}")
        async with await provider.launch(LaunchSpec(target="echo")) as deployment:
            [server] = deployment.servers
            assert f"//{second.address}:" in deployment.url
            with _lost(slurm, second):
                await _until(deployment, lambda: server.url is None)
                assert server.gone is None
                # At once, too: on that node nothing has to become void first.
                changes = f"ExcNodeList={third.name}", "StartTime=now"
                slurm.run("scontrol", "update", f"JobId={server.handle[0]}", *changes)
                await _until(deployment, lambda: first.address in (server.url or ""), AGAIN_S)
                await deployment.ready()
                await _play(deployment)

    asyncio.run(test())


async def test_a_server_that_is_not_to_be_requeued_is_gone_with_its_node(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path, nodes=slurm.nodes[1].name, requeue=False)
    async with await provider.launch(LaunchSpec(target="echo")) as deployment:
        [server] = deployment.servers
        with _lost(slurm, slurm.nodes[1]):
            await _until(deployment, lambda: server.gone is not None)
            assert server.gone == "was lost with its node (NODE_FAIL)"
            assert deployment.urls == []


@contextmanager
def _lost(slurm: Slurm, node: SlurmNode) -> Iterator[None]:
    """A node is dead, and its administrator has seen that."""
    node.kill()
    slurm.run("scontrol", "update", f"NodeName={node.name}", "State=DOWN", "Reason=lost")
    try:
        yield
    finally:
        slurm.start_node(node)


def test_a_client_brings_its_own_job(slurm: Slurm, tmp_path: Path) -> None:
    with GenericEnvClient(provider=SlurmProvider("echo", shared_folder=tmp_path)) as env:
        env.reset()
        assert env.step({"message": "hello"}).observation["echoed_message"] == "hello"
    assert _jobs(slurm) == []


async def test_a_server_that_slurm_asks_to_end_drains_first(slurm: Slurm, tmp_path: Path) -> None:
    async with await SlurmProvider(shared_folder=tmp_path).launch(LaunchSpec(target="echo")) as deployment:
        [server] = deployment.servers
        async with _client(deployment) as env:
            await env.reset()
            slurm.run("scancel", "--batch", "--signal=TERM", server.handle[0])
            await _refused(deployment)
            assert (await env.step({"message": "still here"})).observation["echoed_message"] == "still here"
            await deployment.refresh()
            assert server.gone is None
        await _until(deployment, lambda: server.gone is not None)
        assert server.gone == "has ended (COMPLETED)"


async def _refused(deployment: Deployment, limit_s: float = 15.0) -> None:
    """Waits until a server takes no further sessions."""
    async with asyncio.timeout(limit_s):
        while True:
            try:
                async with _client(deployment) as late:
                    await late.reset()
            except (CapacityError, ConnectionFailed):
                return
            await asyncio.sleep(0.1)


async def test_each_server_has_gpus_of_its_own(slurm: Slurm, tmp_path: Path) -> None:
    command = [
        "sh",
        "-c",
        'echo "GPUS=$CUDA_VISIBLE_DEVICES CPUS=$SLURM_CPUS_PER_TASK"; exec "$0" -m openenv serve echo',
    ]
    spec = LaunchSpec(
        command=[*command, sys.executable], resources=Resources(gpus=2, cpus=1.5, memory="100m"), one_per_gpu=True
    )
    async with await SlurmProvider(shared_folder=tmp_path).launch(spec) as deployment:
        await deployment.ready()
        said = [(await deployment.logs(server)).splitlines()[0] for server in deployment.servers]
        assert sorted(said) == ["GPUS=0 CPUS=2", "GPUS=1 CPUS=2"]
        assert "MinMemoryNode=100M" in slurm.run("scontrol", "show", "job", deployment.servers[0].handle[0])


async def test_servers_that_want_a_node_each_have_one(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path, exclusive=True, reached_at="hostname")
    async with await provider.launch(LaunchSpec(target="echo", replicas=2)) as deployment:
        assert {url.split(":")[1] for url in deployment.urls} == {"//n0", "//n1"}


async def test_secrets_are_in_nothing_that_others_can_read(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path / "shared", env_vars={"SOME_TOKEN": "sesame-open-up"})
    async with await provider.launch(LaunchSpec(target="echo")) as deployment:
        job = deployment.servers[0].handle[0]
        folder = tmp_path / "shared" / deployment.name
        assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "variables.json").stat().st_mode) == 0o600
        public = slurm.run("scontrol", "show", "job", "-dd", job) + slurm.run(
            "scontrol", "write", "batch_script", job, "-"
        )
        assert "main({" in public
        for secret in deployment.secrets:
            assert secret not in public
    assert _inside(tmp_path / "shared") == []


async def test_servers_without_a_shared_folder_connect_back(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.providers.slurm.provider.LONGEST_ARRAY", 2)
    provider = SlurmProvider(announce="connect", trainer_host=slurm.address, shared_folder=tmp_path / "none")
    async with await provider.launch(LaunchSpec(target="echo", replicas=3)) as deployment:
        await deployment.ready()
        assert [server.handle[0].partition("_")[2] for server in deployment.servers] == ["0", "1", "0"]
        for number in range(3):
            await _play(deployment, number)
        assert "echo on http://" in await deployment.logs(deployment.servers[0])
        public = slurm.run("scontrol", "write", "batch_script", deployment.servers[0].handle[0], "-")
        assert not any(secret in public for secret in deployment.secrets)
    assert not (tmp_path / "none").exists()


async def test_one_that_crashes_without_a_shared_folder_says_why(slurm: Slurm) -> None:
    provider = SlurmProvider(announce="connect", trainer_host=slurm.address)
    spec = LaunchSpec(command=[sys.executable, "-m", "openenv.testing.misbehaving", "crash"])
    with pytest.raises(LaunchFailed, match=f"(?s)exit code {CRASH_CODE}.*{LAST_WORDS}"):
        async with await provider.launch(spec) as deployment:
            await deployment.ready()
    assert _jobs(slurm) == []


async def test_nobody_announces_a_server_who_does_not_know_the_token(slurm: Slurm) -> None:
    provider = SlurmProvider(announce="connect", trainer_host=slurm.address)
    async with await provider.launch(LaunchSpec(target="echo")) as deployment:
        job, board = deployment.servers[0].handle
        false = json.dumps({"task": job, "restart": 7, "url": "http://127.0.0.1:1"})
        for line in (f"{'0' * 64} {false}\n", false + "\n", "\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", board.plan["listener"])
            await reader.readline()
            writer.write(line.encode())
            assert await reader.read() == b""
            writer.close()
        await deployment.refresh()
        assert slurm.nodes[0].address in deployment.url


async def test_what_the_queue_waits_for_is_told(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path, partition="short", time_limit="10", queue_timeout_s=1.2)
    with pytest.raises(
        NotReady, match=r"1 of 1 servers .* within 1.2 s \(queue_timeout_s\): 1 PENDING \(PartitionTime"
    ):
        await provider.launch(LaunchSpec(target="echo"))
    full = SlurmProvider(shared_folder=tmp_path, exclusive=True, queue_timeout_s=2.5)
    with pytest.raises(NotReady, match=r"\d of 4 servers .*[1-4] PENDING \(Resources\)"):
        await full.launch(LaunchSpec(target="echo", replicas=4))
    assert _jobs(slurm) == []
    assert _inside(tmp_path) == []


async def test_what_slurm_refuses_is_told(slurm: Slurm, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="(?i)sbatch failed: .*invalid partition"):
        await SlurmProvider(shared_folder=tmp_path, partition="nowhere").launch(LaunchSpec(target="echo"))
    assert _jobs(slurm) == []
    assert _inside(tmp_path) == []


async def test_a_folder_that_cannot_be_written_is_told(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchFailed, match="set shared_folder to a writable folder"):
        await SlurmProvider(shared_folder=tmp_path / "file").launch(LaunchSpec(target="echo"))
    assert _jobs(slurm) == []


async def test_a_folder_that_nodes_do_not_see_is_told(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path, setup=["cd /", f'mv "{tmp_path}" "{tmp_path}.away"', "exit 9"])
    with pytest.raises(LaunchFailed, match="check that all nodes share shared_folder"):
        await provider.launch(LaunchSpec(target="echo"))


async def test_a_controller_that_does_not_answer_is_busy(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = (slurm.folder / "slurm.conf").read_text()
    (tmp_path / "slurm.conf").write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=9\nMessageTimeout=1", conf))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    provider = SlurmProvider(shared_folder=tmp_path / "shared", start_rate=StartRate(attempts=1))
    with pytest.raises(ProviderBusy, match="(?i)unable to contact"):
        await provider.launch(LaunchSpec(target="echo"))


_TRAINER = """
import asyncio, sys
from openenv.providers import LaunchSpec, SlurmProvider

async def main():
    deployment = await SlurmProvider(shared_folder=sys.argv[1]).launch(LaunchSpec(target="echo", replicas=2))
    print(deployment.name, flush=True)
    if sys.argv[2] == "wait":
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_what_a_killed_trainer_left_is_found_and_removed_and_nothing_else(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path)
    async with await provider.launch(LaunchSpec(target="echo")) as mine:
        trainer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _TRAINER, str(tmp_path), "wait", stdout=asyncio.subprocess.PIPE
        )
        assert trainer.stdout is not None
        name = (await trainer.stdout.readline()).decode().strip()
        trainer.kill()
        await trainer.wait()
        left = [each for each in await provider.leftovers() if each.owner is not None and each.owner.alive is False]
        assert [(each.kind, each.deployment) for each in left] == [("job", name)]
        for each in left:
            await provider.discard(each)
            await provider.discard(each)
        assert [each.deployment for each in await provider.leftovers()] == [mine.name]
        assert _inside(tmp_path) == [mine.name]
        await mine.refresh()
        await _play(mine)


async def test_a_folder_whose_jobs_are_over_is_left_over_too(slurm: Slurm, tmp_path: Path) -> None:
    provider = SlurmProvider(shared_folder=tmp_path)
    deployment = await provider.launch(LaunchSpec(target="echo"))
    slurm.run("scancel", deployment.servers[0].handle[0])
    await _until(deployment, lambda: deployment.servers[0].gone is not None)
    assert deployment.servers[0].gone == "was cancelled (CANCELLED)"
    [left] = await provider.leftovers()
    assert (left.kind, left.name) == ("folder", deployment.name)
    await provider.discard(left)
    assert await provider.leftovers() == []
    await deployment.stop()


async def test_a_trainer_that_ends_without_a_stop_leaves_nothing(slurm: Slurm, tmp_path: Path) -> None:
    trainer = await asyncio.create_subprocess_exec(sys.executable, "-c", _TRAINER, str(tmp_path), "end")
    assert await trainer.wait() == 0
    assert _jobs(slurm) == []
    assert _inside(tmp_path) == []


async def test_the_recipe_without_the_provider_works(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "variables").write_text("OPENENV_API_KEYS=control:of-the-recipe\n")
    monkeypatch.setenv("OPENENV_FOLDER", str(tmp_path))
    monkeypatch.setenv("OPENENV_PYTHON", sys.executable)
    log = f"--output={tmp_path}/%A_%a.log"
    for tasks in (["--array=0-1", "--exclusive"], ["--array=0"]):  # two arrays, which both have a first task
        slurm.run("sbatch", log, *tasks, str(RECIPE / "servers.sbatch"), "echo")
    listed = tmp_path / "backends"
    await _true(lambda: listed.exists() and len(listed.read_text().splitlines()) == 3)
    async with _gateway() as url:
        await until_ready(url, 10.0, api_key="of-the-recipe")
        async with GenericEnvClient(url, api_key="of-the-recipe") as env:
            await env.reset()
            slurm.run("scancel", "--batch", "--signal=TERM", "--name=openenv")
            assert (await env.step({"message": "drains"})).observation["echoed_message"] == "drains"
        await _true(lambda: not _jobs(slurm))
        assert listed.read_text() == ""


@asynccontextmanager
async def _gateway() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        str(RECIPE / "gateway.sh"), "--listen", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        yield (await process.stderr.readline()).decode().split()[0]
    finally:
        process.terminate()
        await process.communicate()


def test_a_server_drains_before_its_time_limit(expiry: Future[str | None]) -> None:
    assert expiry.result(60.0) == "has ended (COMPLETED)"
