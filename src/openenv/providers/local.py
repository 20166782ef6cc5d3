"""Servers as processes of this machine, with this Python (`LocalProvider`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from .._asyncio import on_thread
from ..errors import LaunchFailed, UsageError
from ..settings import ServerSettings, environ_of_environments
from .base import PRIVATE_SERVER_VARIABLES, BlockingRuntime, Leftover, SingleServerProvider, StartRate
from .deployment import Deployment, Server
from .owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess
from .process import GRACE_S, Process, ProcessStart, free_port
from .redaction import key_of, with_tail
from .spec import Capabilities, LaunchSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that tells a process which GPUs it has."""


class GpuAllocator:
    """Assigns GPUs to the servers of this process. To share GPUs between processes, set `CUDA_VISIBLE_DEVICES`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, count: int, visible: str | None) -> tuple[str, ...]:
        """GPUs for a server, by their names in `CUDA_VISIBLE_DEVICES`.

        Args:
            count: Number of GPUs.
            visible: `CUDA_VISIBLE_DEVICES` of this process. None if it is unset: all GPUs of the machine are usable.

        Raises:
            LaunchFailed: Too few GPUs are free.
        """
        if visible is None:
            devices = [device.name.removeprefix("nvidia") for device in Path("/dev").glob("nvidia[0-9]*")]
            # Where the number of the machine's GPUs is unknown, assume that there are enough.
            names = sorted(devices, key=int) or [str(number) for number in range(count + len(self._taken))]
        else:
            names = [name.strip() for name in visible.split(",")]
            # CUDA ignores the names after the first unknown one.
            names = names[: names.index("-1")] if "-1" in names else [name for name in names if name]
        free = [name for name in names if name not in self._taken][:count]
        if len(free) < count:
            raise LaunchFailed(
                f"{count} GPUs requested, but only {len(free)} of {len(names)} are free: "
                "stop another deployment, or request fewer"
            )
        self._taken.update(free)
        return tuple(free)

    def give_back(self, gpus: tuple[str, ...]) -> None:
        """Frees GPUs that `take` returned. May be called repeatedly until another server takes them."""
        self._taken.difference_update(gpus)


machine_gpus = GpuAllocator()
"""GPUs of this process's servers. Used only on the shared event loop of this process."""


# The log line of `openenv serve` and uvicorn with their port. The kernel chooses it: no other process can take it.
LISTENING = r"\bon https?://\[?[\w.:]+?\]?:(\d+)"
# Labels of processes are environment variables, which their children inherit.
_AS_VARIABLES = {PROVIDER: "OPENENV_PROVIDER", DEPLOYMENT: "OPENENV_DEPLOYMENT", OWNER: "OPENENV_OWNER"}


def environment_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as environment variables: processes have no other labels."""
    return {_AS_VARIABLES[name]: value for name, value in labels.items()}


class _RunningServer(ProcessStart):
    """A server's process, and its GPUs."""

    gpus: tuple[str, ...] = ()

    async def stop(self) -> None:
        await super().stop()
        machine_gpus.give_back(self.gpus)
        self.gpus = ()


class ProcessProvider(BlockingRuntime, SingleServerProvider):
    """Servers as local processes that log the port on which they listen.

    Args:
        env_vars: Environment variables of the servers, added to those of this process.
        start_timeout_s: Timeout in seconds until a server listens, and a second one until it is ready.
        start_rate: How fast servers are started.
    """

    def __init__(
        self, env_vars: Mapping[str, str] | None, start_timeout_s: float, start_rate: StartRate | None = None
    ):
        self.variables = {**PRIVATE_SERVER_VARIABLES, **(env_vars or {})}
        self.api_key = key_of(self.variables)
        self._reached_at = "127.0.0.1"
        self.ready_timeout_s = start_timeout_s
        self.start_rate = start_rate or StartRate(at_once=os.cpu_count() or 1)

    @abstractmethod
    def command(self, spec: LaunchSpec, port: int) -> list[str]:
        """Command line of a server that listens on `port`. With 0, the server takes a free port and logs it."""

    @abstractmethod
    def folder(self, spec: LaunchSpec) -> Path | None:
        """Working folder of a server. None for the current folder."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Base environment of the servers, to which their own variables are added."""

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`."""
        if spec.port is not None and spec.count > 1:
            raise UsageError(f"{spec.count} servers cannot listen on the same port {spec.port}: leave out port")
        return super().deployment(spec)

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        spec = deployment.spec
        if spec.port is not None and len(deployment.servers) > 1:
            raise UsageError(f"a second server cannot listen on the port {spec.port}: leave out port")
        server.handle = running = _RunningServer()
        inherited = self.environment()
        running.gpus = machine_gpus.take(spec.gpus_each, inherited.get(VISIBLE)) if spec.gpus_each else ()
        variables = {**inherited, **deployment.variables, **environment_labels(deployment.labels)}
        if running.gpus:
            variables[VISIBLE] = ",".join(running.gpus)
        # A user's command may not log the port on which it listens.
        port = spec.port or (0 if spec.command is None else free_port())
        command = self.command(spec, port) if spec.command is None else list(spec.command)
        if spec.command is not None:
            variables |= {"PORT": str(port), "HOST": "127.0.0.1"}
        process = await running.start(lambda: Process(command, variables, self.folder(spec)))
        if not port:
            found = await on_thread(lambda: process.wait_for(LISTENING, self.ready_timeout_s))
            if found is None:
                how = await on_thread(lambda: process.end) or f"did not listen within {self.ready_timeout_s:g} s"
                raise LaunchFailed(with_tail(f"the server {how}", process.tail))
            port = int(found[1])
        server.url = f"http://{self._reached_at}:{port}"

    async def stop_server(self, server: Server) -> None:
        if server.handle is not None:
            await server.handle.stop()

    async def why_gone(self, server: Server) -> str | None:
        process = None if server.handle is None else server.handle.process
        # On a thread: the call may wait for the end of the log.
        return None if process is None else await on_thread(lambda: process.end)

    async def read_log(self, server: Server, lines: int) -> str:
        process = None if server.handle is None else server.handle.process
        return "" if process is None else process.log(lines)

    async def find_leftovers(self) -> list[Leftover]:
        """Processes with our labels in their environment, as far as this user may read it."""
        mark = f"{_AS_VARIABLES[PROVIDER]}={type(self).__name__}"

        def search() -> list[Leftover]:
            found = []
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    raw = (folder / "environ").read_bytes()
                except OSError:
                    continue
                if mark.encode() not in raw.split(b"\0"):
                    continue
                entries = raw.decode(errors="replace").split("\0")
                variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
                labels = {name: variables.get(variable, "") for name, variable in _AS_VARIABLES.items()}
                handle = OwnerProcess.of(int(folder.name))
                found.append(Leftover.from_labels("process", folder.name, labels, handle))
            return found

        return await on_thread(search)

    async def remove_leftover(self, leftover: Leftover) -> None:
        await on_thread(lambda: _end_process(leftover.handle))


def _end_process(process: OwnerProcess | None) -> None:
    """Ends a process with SIGTERM, then SIGKILL, unless another process has its PID by now."""
    if process is None or sys.platform != "linux":  # elsewhere none is found
        return
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if not process.alive:
                return
            # The handle stays bound to this process, even if another process gets its PID.
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(handle, number)
                if ended.poll(GRACE_S * 1000):
                    return
        finally:
            os.close(handle)


class LocalProvider(ProcessProvider):
    """Runs `openenv serve` on this machine, with the Python and the packages of this process.

    Example::

        async with EnvClient(provider=LocalProvider("echo", workers=4)) as env:
            await env.reset()

    Args:
        target: Argument of `openenv serve`: `module:attribute`, a folder with openenv.yaml, `gymnasium:ENV_ID`,
            `pettingzoo:MODULE`, `envpool:TASK_ID`, `pufferlib:NAME`, or a bundled environment. None takes the target
            of each `LaunchSpec`.
        folder: Working folder of the servers, from which they also import modules. None for the current folder.
        env_vars: Environment variables of the servers, added to those of this process.
        start_timeout_s: Timeout in seconds for the start of the process, without the start of environments.
        start_rate: How fast servers are started.
        settings: Settings of the server by name (`workers`, `max_sessions`, ...), as in `LaunchSpec.options`.

    Raises:
        UsageError: An unknown setting, or an invalid value.
    """

    capabilities: ClassVar = Capabilities(forms=frozenset({"target", "command"}), gpus=True, options=None)

    def __init__(
        self,
        target: str | None = None,
        *,
        folder: str | Path | None = None,
        env_vars: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
        start_rate: StartRate | None = None,
        **settings: Any,
    ):
        super().__init__({**variables_of(settings), **(env_vars or {})}, start_timeout_s, start_rate)
        self._target = target
        self._folder = None if folder is None else Path(folder)

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`; the specification's options are settings of the server."""
        given = {**variables_of(spec.options), **spec.env_vars}
        return super().deployment(spec.changed(env_vars=given))

    def command(self, spec: LaunchSpec, port: int) -> list[str]:
        served = [str(spec.target), "--port", str(port), "--host", "127.0.0.1"]
        return [sys.executable, "-m", "openenv", "serve", *served]

    def folder(self, spec: LaunchSpec) -> Path | None:
        return self._folder

    def environment(self) -> dict[str, str]:
        return environ_of_environments()


def variables_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as environment variables: every user of the machine can read a command line."""
    # Servers on loopback need no certificates: clients get an http address.
    kept = {"host", "port", "target", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"}
    rows = {row.name: row for row in ServerSettings.table() if row.name not in kept}
    unknown = sorted(settings.keys() - rows.keys())
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: unknown settings; available: {', '.join(rows)}")
    ServerSettings.read({}, **settings)
    return {rows[name].variable: str(value) for name, value in settings.items() if value is not None}
