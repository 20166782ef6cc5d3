"""A Docker engine of the tests' own: nothing of it is shared with one that is there, and nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Dockerd", "dockerd"]

START_S = 20.0
STOP_S = 15.0
_NEEDED = ("dockerd", "containerd", "runc", "ip", "nsenter", "setpriv", "unshare")


@dataclass(frozen=True, slots=True)
class Dockerd:
    """An engine that runs.

    Attributes:
        host: What DOCKER_HOST is to say.
        folder: Where all that it has is: `log`, `data`, `exec`.
        pid: Of dockerd itself.
        bridge: The network interface that its containers are at.
        namespace: The network namespace that it is in; None: the tests' own.
    """

    host: str
    folder: Path
    pid: int
    bridge: str
    namespace: str | None

    def client(self) -> Any:
        """The SDK's client of it; close it."""
        import docker

        return docker.DockerClient(base_url=self.host)

    def log(self, lines: int = 20) -> str:
        """The end of what it says."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-lines:])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Has it end, as a fault."""
        os.kill(self.pid, number)


@contextlib.contextmanager
def dockerd(
    *,
    namespace: str | None = None,
    hostname: str | None = None,
    iptables: bool = False,
    runtimes: Mapping[str, Mapping[str, Any]] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Dockerd]:
    """Starts an engine with a bridge of its own; skips the test, with the reason, where there can be none.

    Args:
        namespace: A network namespace that there is, by its name (`ip netns`); its containers' ports are there, too.
        hostname: A host name of its own, by which swarms tell nodes apart.
        iptables: Whether it may write rules, which swarms' overlay networks need. Ports on loopback need none.
        runtimes: Further runtimes, as in daemon.json.
        arguments: Further arguments of dockerd.
    """
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        pytest.skip(f"a Docker engine needs {', '.join(missing)}: apt-get install docker.io iptables")
    if os.geteuid() != 0:
        pytest.skip("a Docker engine is started by root alone")
    folder = Path(tempfile.mkdtemp(prefix="oe-dockerd-"))  # short: a path of a socket has 107 letters at most
    inside = [] if namespace is None else ["nsenter", f"--net=/run/netns/{namespace}", "--"]
    try:
        with _bridge(inside) as bridge:
            settings = {
                "bridge": bridge,
                "data-root": f"{folder}/data",
                "exec-root": f"{folder}/exec",
                "pidfile": f"{folder}/pid",
                "hosts": [f"unix://{folder}/s"],
                "iptables": iptables,
                "ip6tables": False,
                "ip-forward": iptables,
                "runtimes": dict(runtimes or {}),
            }
            (folder / "daemon.json").write_text(json.dumps(settings))
            # It ends with the tests, however those end.
            command = ["setpriv", "--pdeathsig", "TERM", *inside, *_named(hostname)]
            command += ["dockerd", "--config-file", f"{folder}/daemon.json", *arguments]
            with (folder / "log").open("w") as log:
                child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            engine = Dockerd(f"unix://{folder}/s", folder, child.pid, bridge, namespace)
            try:
                _await(engine, child)
                yield engine
            finally:
                _end(engine, child)
    finally:
        _remove(folder)


@contextlib.contextmanager
def _bridge(inside: Sequence[str]) -> Iterator[str]:
    """A bridge with a net of its own. Its name is the claim to the net: the kernel has each name once."""

    def ip(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*inside, "ip", *words], capture_output=True, text=True, check=False)

    for number in range(1, 250):
        name = f"oe-docker{number}"
        made = ip("link", "add", "name", name, "type", "bridge")
        if made.returncode == 0:
            break
        if "exists" not in made.stderr:
            pytest.skip(f"a Docker engine needs a network bridge, which cannot be made here: {made.stderr.strip()}")
    try:
        ip("address", "add", f"10.231.{number}.1/24", "dev", name)
        ip("link", "set", name, "up")
        yield name
    finally:
        ip("link", "delete", name)


def _named(hostname: str | None) -> list[str]:
    return [] if hostname is None else ["unshare", "--uts", "sh", "-c", f'hostname {hostname}; exec "$@"', "sh"]


def _await(engine: Dockerd, child: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + START_S
    while not _answers(engine.folder / "s"):
        if child.poll() is not None:
            pytest.skip(f"no Docker engine can run here:\n{engine.log(5)}")
        assert time.monotonic() < limit, f"dockerd was not ready within {START_S} s:\n{engine.log()}"
        time.sleep(0.05)


def _answers(path: Path) -> bool:
    """Whether an engine is ready. The SDK leaves a socket open where none is."""
    with socket.socket(socket.AF_UNIX) as end, contextlib.suppress(OSError):
        end.settimeout(1.0)
        end.connect(str(path))
        end.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in end.recv(64)
    return False


def _end(engine: Dockerd, child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(Exception):  # it would ask each container, and wait ten seconds
            if _answers(engine.folder / "s"):
                _empty(engine)
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
        child.kill()
    child.wait()
    # What it has left, as when it was killed: what ran in containers, the shims of those, its containerd, and what it
    # was starting meanwhile.
    limit = time.monotonic() + 5.0
    while (left := _processes(f"{engine.folder}/exec/")) and time.monotonic() < limit:
        for pid in [*_children(left), *left]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _empty(engine: Dockerd) -> None:
    with contextlib.closing(engine.client()) as client:
        if client.info()["Swarm"]["LocalNodeState"] == "active":
            client.swarm.leave(force=True)
        for container in client.containers.list(all=True):
            container.remove(force=True, v=True)


def _processes(folder: str) -> list[int]:
    """Processes whose command line names a folder: containerd and its shims do."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if folder.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
    return found


def _children(parents: list[int]) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text(errors="replace").rpartition(")")[2].split()[1]) in parents:
                found.append(int(entry.parent.name))
    return found


def _remove(folder: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
