"""Servers that providers run as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openenv._asyncio import shared_loop
from openenv.client import GenericEnvClient
from openenv.client.portal import portal
from openenv.errors import LaunchFailed, NotReady, ProviderFailed, UsageError
from openenv.providers import Deployment, LaunchSpec, LocalProvider, Resources, Server, UVProvider
from openenv.providers.owner import OwnerProcess
from openenv.providers.process import Process

from ..asynchronous import Gate
from ..providers.test_process import lives
from ..server.wires import eventually

pytestmark = pytest.mark.real

# Starting several servers at once on a busy machine.
LIMIT_S = 120.0
BROKEN = """
import os, sys, time
from openenv.envs.echo.server.app import app
"""


def folder_with(tmp_path: Path, app: str) -> Path:
    """A project as they are on disk."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").touch()
    (tmp_path / "server" / "app.py").write_text(app, encoding="utf-8")
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\nname: mine\napp: server.app:app\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n', encoding="utf-8")
    return tmp_path


def pid_of(provider: Any) -> int:
    return process_of(provider).pid


def process_of(provider: Any) -> Process:
    """The process of what its blocking calls have started."""
    process: Process = provider.current.servers[0].handle.process
    return process


# This Python.


@pytest.mark.slow
def test_an_episode_on_a_server_of_ones_own() -> None:
    provider = LocalProvider("echo", max_sessions=2)
    env = GenericEnvClient(provider=provider)
    env.reset()
    assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    assert env.base_url == provider.base_url
    pid = pid_of(provider)
    env.close()
    assert not lives(pid)
    env.reset()  # it may be started again
    assert pid_of(provider) != pid
    env.close()


@pytest.mark.slow
async def test_awaited_and_with_workers() -> None:
    async with GenericEnvClient(provider=LocalProvider("echo", workers=2, max_sessions=3)) as env:
        await env.reset()
        assert (await env.step({"message": "hi"})).reward is not None


@pytest.fixture
def threads_of_the_process() -> None:
    """The two threads that a process has once it has used a client and a provider are there already."""
    portal()
    shared_loop()


def test_a_block_of_its_own(threads_of_the_process: None, no_threads_left: None) -> None:
    with LocalProvider("echo") as provider:
        pid = pid_of(provider)
        with GenericEnvClient(provider.base_url) as env:
            env.reset()
        with pytest.raises(UsageError, match="already"):
            provider.start()
    assert not lives(pid)
    provider.stop()
    with pytest.raises(UsageError, match=r"start\(\)"):
        provider.base_url  # noqa: B018


@pytest.mark.slow
def test_several_at_the_same_time_take_different_ports() -> None:
    def play(_: int) -> str:
        with LocalProvider("echo") as provider, GenericEnvClient(provider.base_url) as env:
            env.reset()
            together.wait(LIMIT_S)
            return provider.base_url

    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(play, range(4)))) == 4


@pytest.mark.slow
def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider = LocalProvider("echo")
        provider.start(listener.getsockname()[1])
        began = time.monotonic()
        with pytest.raises(LaunchFailed, match=r"exit code(.|\n)*cannot listen"):
            provider.wait_for_ready()
        assert time.monotonic() - began < 20
        provider.stop()


@pytest.mark.slow
def test_a_folder_with_a_key_that_nobody_sees(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, BROKEN + "print('token:', os.environ['MY_TOKEN'], flush=True)\n")
    variables = {"MY_TOKEN": "hush-hush", "OPENENV_API_KEYS": "control:a-key-that-is-long-enough"}
    provider = LocalProvider(str(folder), env_vars=variables)
    with GenericEnvClient(provider=provider) as env:
        assert "token: ***" in process_of(provider).tail
        command = Path(f"/proc/{pid_of(provider)}/cmdline").read_bytes()
        assert b"hush" not in command
        assert b"long-enough" not in command
        assert "hush" not in repr(vars(process_of(provider))["_command"])
        with pytest.raises(RuntimeError, match="key"):
            GenericEnvClient(env.base_url).reset()
    provider = LocalProvider(str(folder), env_vars=variables)
    provider.start()
    with GenericEnvClient(provider.base_url, provider=provider) as env:
        env.reset()


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "import os\nraise LookupError('no model at ' + os.environ['MY_TOKEN'])\n")
    with pytest.raises(LaunchFailed, match=r"exit code 1(.|\n)*no model at \*\*\*"):
        GenericEnvClient(provider=LocalProvider(str(folder), env_vars={"MY_TOKEN": "hush-hush"})).reset()


@pytest.mark.slow
def test_a_server_that_does_not_listen_in_time(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "import time\nprint('thinking', flush=True)\ntime.sleep(60)\n")
    provider = LocalProvider(str(folder), start_timeout_s=8.0)
    with pytest.raises(LaunchFailed, match=r"did not listen within 8 s(.|\n)*thinking"):
        provider.start()
    with pytest.raises(UsageError, match="no server"):
        provider.wait_for_ready()


@pytest.mark.slow
def test_an_environment_that_is_never_made(tmp_path: Path) -> None:
    app = """
from openenv.server import create_app
from openenv.types import Action, Observation

def make():
    raise LookupError("no model here")

app = create_app(make, Action, Observation)
"""
    provider = LocalProvider(str(folder_with(tmp_path, app)))
    provider.start()
    pid = pid_of(provider)
    with pytest.raises(NotReady, match=r"within 4 s(.|\n)*no model here"):
        provider.wait_for_ready(4.0)
    provider.stop()
    assert not lives(pid)


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_becomes_ready() -> None:
    provider = LocalProvider("echo")
    provider.start()
    os.kill(pid_of(provider), signal.SIGKILL)
    with pytest.raises(LaunchFailed, match="killed by SIGKILL"):
        provider.wait_for_ready()
    provider.stop()


@pytest.mark.parametrize("settings", [{"nonsense": 1}, {"workers": 0}, {"port": 1}, {"host": "0.0.0.0"}])
def test_settings_that_there_are_not(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        LocalProvider("echo", **settings)


def test_settings_win_over_what_is_made_for_each_server() -> None:
    provider = LocalProvider("echo", api_keys="control:a-key-of-my-own-choice", grace_s=5.0)
    assert provider.api_key == "a-key-of-my-own-choice"
    made = provider.deployment(LaunchSpec(target="echo"))
    assert made.api_key == "a-key-of-my-own-choice"
    assert made.variables["OPENENV_GRACE_S"] == "5.0"
    assert (
        provider.deployment(LaunchSpec(target="echo", options={"grace_s": 7.0})).variables["OPENENV_GRACE_S"] == "7.0"
    )
    assert provider.deployment(LaunchSpec(target="echo", api_key="k" * 20)).api_key == "k" * 20


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupt", "exit", "kill"])
def test_nothing_is_left_when_the_program_ends(how: str) -> None:
    program = """
import sys, time
from openenv import GenericEnvClient
from openenv.providers import LocalProvider
provider = LocalProvider("echo")
env = GenericEnvClient(provider=provider)
env.reset()
print(provider.current.servers[0].handle.process.pid, flush=True)
if sys.argv[1] != "exit":
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if how != "exit":
            parent.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
        parent.wait(30)
    eventually(lambda: not lives(pid))


# Deployments.

SAYS = "import os, sys, time; print(*(f'{name}={value}' for name, value in os.environ.items()), sep=os.linesep)"
SAYS = [sys.executable, "-uc", SAYS + "; print('up'); time.sleep(60)"]


async def variables_of(made: Deployment, server: Server) -> dict[str, str]:
    """What the program SAYS has."""
    while "up" not in (log := await made.logs(server, 500)).splitlines():
        assert await made.provider.why_gone(server) is None
    return dict(line.split("=", 1) for line in log.splitlines() if "=" in line)


async def test_each_of_several_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    provider = LocalProvider()
    spec = LaunchSpec(command=SAYS, resources=Resources(gpus=2), one_per_gpu=True)
    async with await provider.launch(spec) as made:
        shown = [(await variables_of(made, server))["CUDA_VISIBLE_DEVICES"] for server in made.servers]
        assert shown == ["GPU-a", "GPU-b"]
        async with await provider.launch(LaunchSpec(command=SAYS, resources=Resources(gpus=1))) as other:
            assert (await variables_of(other, other.servers[0]))["CUDA_VISIBLE_DEVICES"] == "GPU-c"
            with pytest.raises(LaunchFailed, match="1 GPUs requested, but only 0 of 3 are free"):
                await other.scale(2)
            assert len(other.urls) == 1
    async with await provider.launch(spec.changed(resources=Resources(gpus=3))) as made:
        assert len(made.urls) == 3


async def test_what_a_server_is_told_and_what_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", "control:key-of-this-process")
    monkeypatch.setenv("OF_THIS_PROCESS", "here")
    spec = LaunchSpec(command=SAYS, env_vars={"MINE": "too"}, replicas=2)
    async with await LocalProvider().launch(spec) as made:
        told = [await variables_of(made, server) for server in made.servers]
        for variables, server in zip(told, made.servers, strict=True):
            assert variables["OPENENV_API_KEYS"] == "***"
            assert (variables["MINE"], variables["OF_THIS_PROCESS"], variables["HOST"]) == (
                "too",
                "here",
                "127.0.0.1",
            )
            assert server.url == f"http://127.0.0.1:{variables['PORT']}"
            assert variables["OPENENV_DEPLOYMENT"] == made.name
        held = Path(f"/proc/{made.servers[0].handle.process.pid}/environ")
        assert (await asyncio.to_thread(held.read_text)).count(str(made.api_key)) == 1


async def test_one_port_is_for_one_server() -> None:
    provider = LocalProvider()
    with pytest.raises(UsageError, match="2 servers cannot listen on the same port 4711"):
        await provider.launch(LaunchSpec(command=SAYS, port=4711, replicas=2))
    async with await provider.launch(LaunchSpec(command=SAYS, port=4711)) as made:
        assert made.url == "http://127.0.0.1:4711"
        with pytest.raises(UsageError, match="a second server cannot listen on the port 4711"):
            await made.scale(2)
        assert made.urls == ["http://127.0.0.1:4711"]


async def test_what_a_place_of_processes_cannot_do() -> None:
    for spec in (LaunchSpec(image="a:1"), LaunchSpec(command=SAYS, resources=Resources(memory="1g"))):
        with pytest.raises(UsageError, match="LocalProvider"):
            await LocalProvider().launch(spec)
    with pytest.raises(UsageError, match="unknown settings"):
        await LocalProvider().launch(LaunchSpec(target="echo", options={"nonsense": 1}))
    with pytest.raises(UsageError, match="no target"):
        LocalProvider().start()


async def test_a_program_that_is_not_there() -> None:
    async with await LocalProvider().launch(LaunchSpec(command=["/nowhere/program"])) as made:
        with pytest.raises(LaunchFailed, match=r"exit code 1(.|\n)*No such file"):
            await made.ready()
    with pytest.raises(LaunchFailed, match="could not be started"):
        await LocalProvider(folder="/nowhere").launch(LaunchSpec(command=SAYS))


async def test_a_cancel_at_any_moment_of_the_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the moment when a process is just being made, on a thread that nobody can stop."""
    gate, made = Gate(), []

    def make(*arguments: Any) -> Process:
        gate.wait()
        made.append(Process(*arguments))
        return made[0]

    monkeypatch.setattr("openenv.providers.local.Process", make)
    provider = LocalProvider()
    launching = asyncio.ensure_future(provider.launch(LaunchSpec(command=SAYS)))
    await gate.reached()
    launching.cancel()
    await asyncio.wait([launching], timeout=0.05)
    assert not launching.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert made[0].end is not None
    assert [left for left in await provider.leftovers() if left.owner == OwnerProcess.this()] == []


# uv.


@pytest.fixture
def offline() -> dict[str, str]:
    """uv with the packages of this Python and without a network."""
    if shutil.which("uv") is None and not (Path(sys.executable).parent / "uv").exists():
        pytest.skip("uv is not installed")
    return {"UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_OFFLINE": "1", "UV_NO_SYNC": "1"}


def test_a_project_run_by_uv(tmp_path: Path, offline: dict[str, str]) -> None:
    folder = folder_with(tmp_path, BROKEN)
    provider = UVProvider(project_path=str(folder), env_vars=offline, context_timeout_s=30.0)
    with provider, GenericEnvClient(provider.base_url) as env:
        pid = pid_of(provider)
        env.reset()
        assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    assert not lives(pid)


async def test_a_project_run_by_uv_for_a_client(tmp_path: Path, offline: dict[str, str]) -> None:
    provider = UVProvider(project_path=folder_with(tmp_path, BROKEN), env_vars=offline)
    async with GenericEnvClient.from_env("team/mine", use_docker=False, provider=provider) as env:
        await env.reset()
        pid = pid_of(provider)
    assert not lives(pid)


def test_a_project_that_fails_under_uv(tmp_path: Path, offline: dict[str, str]) -> None:
    folder = folder_with(tmp_path, "raise LookupError('no model')\n")
    with pytest.raises(LaunchFailed, match="no model"):
        UVProvider(project_path=folder, env_vars=offline).start()


def test_what_uv_runs_can_be_read_and_changed(tmp_path: Path, offline: dict[str, str]) -> None:
    folder = folder_with(tmp_path, BROKEN)
    provider = UVProvider(project_path=os.path.relpath(folder), app="nowhere:app", host="0.0.0.0", env_vars=offline)
    assert (provider.project_path, provider.app, provider.reload) == (str(folder), "nowhere:app", False)
    assert (provider.host, provider.public, provider.env_vars) == ("0.0.0.0", True, offline)
    provider.app, provider.host, provider.context_timeout_s = "server.app:app", "127.0.0.1", 30.0
    assert (provider.public, provider.ready_timeout_s) == (False, 30.0)
    provider.start(None, {}, 1)
    try:
        provider.wait_for_ready()
        with GenericEnvClient(provider.base_url) as env:
            env.reset()
    finally:
        provider.stop()


def test_a_project_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=r"pyproject\.toml"):
            UVProvider(project_path=str(path))


def test_uv_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ProviderFailed, match="pip install uv"):
        UVProvider(project_path=folder_with(tmp_path, BROKEN))


def test_the_command_lines_of_uv(tmp_path: Path, offline: dict[str, str]) -> None:
    def command(provider: UVProvider, **options: Any) -> list[str]:
        return provider.command(provider.spec_of(None, {}, options), 0)[1:]

    url = "git+https://envs.example/team/mine@1.0"
    served = ["uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", "0"]
    assert command(UVProvider(project_path=url)) == [
        *("run", "--with", url, "--isolated", "--no-project"),
        *(*served, "--log-level", "info", "--timeout-graceful-shutdown", "2", "--workers", "1"),
    ]
    local = UVProvider(
        project_path=folder_with(tmp_path, BROKEN), reload=True, host="0.0.0.0", options=("--offline",)
    )
    assert command(local)[:4] == ["run", "--offline", "--project", str(tmp_path)]
    assert command(local)[-1] == "--reload"
    assert (local.public, local._reached_at) == (True, "127.0.0.1")
    hosts = {"127.0.0.1": "127.0.0.1", "localhost": "localhost", "::1": "[::1]"}
    for host, address in hosts.items():
        provider = UVProvider(project_path=url, host=host)
        assert (provider.public, provider._reached_at) == (False, address)
    assert UVProvider(project_path=url, host="10.1.2.3")._reached_at == "10.1.2.3"
    assert command(UVProvider(project_path=url, app="mine.app:app"), workers=3)[-1] == "3"


# The key.


async def test_a_client_that_starts_its_server_alone_has_its_key() -> None:
    async with GenericEnvClient(provider=LocalProvider("echo")) as env:
        await env.reset()
        other = await env.new_session()
        assert (await other.reset()).done is False
        with pytest.raises(RuntimeError, match="key"):
            await GenericEnvClient(env.base_url).reset()


async def test_a_key_of_ones_own_goes_first() -> None:
    variables = {"OPENENV_API_KEYS": "control:a-key-that-is-long-enough"}
    provider = LocalProvider("echo", env_vars=variables)
    env = GenericEnvClient(provider=provider, api_key="another-key-that-is-wrong")
    with pytest.raises(RuntimeError, match="key"):
        await env.reset()
    await env.close()
