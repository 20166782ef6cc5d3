"""Providers whose servers are processes of this machine."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..background import heard, on_thread
from ..errors import LaunchFailed, UsageError
from .blocking import BlockingRuntime
from .deployment import Deployment, Server
from .local_gpus import VISIBLE, of_machine
from .one_by_one import OneByOne
from .owner import DEPLOYMENT, OWNER, PROVIDER, Owner
from .pace import Pace
from .ports import free_port
from .process import GRACE_S, Process
from .provider import FOR_ITS_OWNER, Leftover
from .secrecy import key_of
from .spec import LaunchSpec
from .tail import with_tail

__all__ = ["ServerProcess", "environment_labels"]

# What `openenv serve` and uvicorn say when they listen. The port is the kernel's choice: nobody can take it before.
LISTENING = r"\bon https?://\[?[\w.:]+?\]?:(\d+)"
# Labels of processes are environment variables, which their children inherit.
_AS_VARIABLES = {PROVIDER: "OPENENV_PROVIDER", DEPLOYMENT: "OPENENV_DEPLOYMENT", OWNER: "OPENENV_OWNER"}


def environment_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as environment variables, for what can carry no others."""
    return {_AS_VARIABLES[name]: value for name, value in labels.items()}


@dataclass(slots=True)
class _Running:
    """A server's process, from before its start until after its end."""

    gpus: tuple[str, ...] = ()
    starting: asyncio.Future[Process] | None = None

    @property
    def process(self) -> Process | None:
        """The process, once there is one."""
        starting = self.starting
        return starting.result() if starting is not None and starting.done() and not starting.exception() else None

    async def start(self, make: Callable[[], Process]) -> Process:
        # Whoever is cancelled here leaves a process that begins all the same: `stop` waits for it.
        self.starting = asyncio.ensure_future(on_thread(make))
        self.starting.add_done_callback(heard)
        return await asyncio.shield(self.starting)

    async def stop(self) -> None:
        if self.starting is not None:
            await asyncio.wait([self.starting])
        if self.process is not None:
            await on_thread(self.process.stop)
        of_machine.give_back(self.gpus)
        self.gpus = ()


class ServerProcess(BlockingRuntime, OneByOne):
    """Processes that say where they listen.

    Args:
        env_vars: Environment variables, besides those of this process.
        start_timeout_s: Seconds until one listens, and again until it is ready.
        pace: How fast they are started.
    """

    def __init__(self, env_vars: Mapping[str, str] | None, start_timeout_s: float, pace: Pace | None = None):
        self.variables = {**FOR_ITS_OWNER, **(env_vars or {})}
        self.api_key = key_of(self.variables)
        self._reached_at = "127.0.0.1"
        self.ready_timeout_s = start_timeout_s
        self.pace = pace or Pace(at_once=os.cpu_count() or 1)

    @abstractmethod
    def _command(self, spec: LaunchSpec, port: int) -> list[str]:
        """The command line of a server on a port; 0 takes a free one, which it says in its log."""

    @abstractmethod
    def _where(self, spec: LaunchSpec) -> Path | None:
        """The folder that a server runs in; None: here."""

    @abstractmethod
    def _inherited(self) -> dict[str, str]:
        """What its environment variables are made from."""

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`."""
        if spec.port is not None and spec.count > 1:
            raise UsageError(f"{spec.count} servers cannot listen on the one port {spec.port}: leave out port")
        return super().deployment(spec)

    async def _start_one(self, deployment: Deployment, server: Server) -> None:
        spec = deployment.spec
        if spec.port is not None and len(deployment.servers) > 1:
            raise UsageError(f"a second server cannot listen on the port {spec.port}: leave out port")
        server.handle = running = _Running()
        inherited = self._inherited()
        running.gpus = of_machine.take(spec.gpus_each, inherited.get(VISIBLE)) if spec.gpus_each else ()
        variables = {**inherited, **deployment.variables, **environment_labels(deployment.labels)}
        if running.gpus:
            variables[VISIBLE] = ",".join(running.gpus)
        # A command that we do not know may not say where it listens.
        port = spec.port or (0 if spec.command is None else free_port())
        command = self._command(spec, port) if spec.command is None else list(spec.command)
        if spec.command is not None:
            variables |= {"PORT": str(port), "HOST": "127.0.0.1"}
        process = await running.start(lambda: Process(command, variables, self._where(spec)))
        found = str(port) if port else await on_thread(lambda: self._port(process))
        server.url = f"http://{self._reached_at}:{found}"

    async def _stop_one(self, server: Server) -> None:
        if server.handle is not None:
            await server.handle.stop()

    async def _gone(self, server: Server) -> str | None:
        process = _process_of(server)
        # On a thread: it may wait for the end of the log.
        return None if process is None else await on_thread(lambda: process.end)

    async def _log(self, server: Server, lines: int) -> str:
        process = _process_of(server)
        return "" if process is None else process.log(lines)

    async def _leftovers(self) -> list[Leftover]:
        return await on_thread(lambda: _labelled(type(self).__name__))

    async def _discard(self, leftover: Leftover) -> None:
        await on_thread(lambda: _end(leftover.handle))

    def _port(self, process: Process) -> str:
        found = process.wait_for(LISTENING, self.ready_timeout_s)
        if found is None:
            how = process.end or f"did not listen within {self.ready_timeout_s:g} s"
            raise LaunchFailed(with_tail(f"the server {how}", process.tail))
        return found[1]


def _process_of(server: Server) -> Process | None:
    running: _Running | None = server.handle
    return None if running is None else running.process


def _labelled(provider: str) -> list[Leftover]:
    """Processes with the variables of a provider's labels, as far as this user may read them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            raw = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"{_AS_VARIABLES[PROVIDER]}={provider}".encode() not in raw.split(b"\0"):
            continue
        variables = dict(entry.split("=", 1) for entry in raw.decode(errors="replace").split("\0") if "=" in entry)
        owner = Owner.read(variables.get(_AS_VARIABLES[OWNER], ""))
        deployment = variables.get(_AS_VARIABLES[DEPLOYMENT], "")
        found.append(Leftover("process", folder.name, deployment, owner, Owner.of(int(folder.name))))
    return found


def _end(process: Owner | None) -> None:
    """Ends a process, if it is still the one that was found: asks first."""
    if process is None:
        return
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.alive:  # and from now on nothing else is signalled, whatever gets its number
            _signal(handle)
    finally:
        os.close(handle)


def _signal(handle: int) -> None:
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return
        if ended.poll(GRACE_S * 1000):
            return
