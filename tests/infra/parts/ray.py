"""A Ray cluster on this machine: a head and further nodes, each with an address of its own."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from openenv.bench.machine import process_tree
from openenv.providers.process import free_port

__all__ = ["RayCluster", "RayNode", "Unavailable", "ray_program"]

START_S, END_S = 240.0, 10.0
_STARTED = re.compile(r"Ray runtime started")
_GAVE_UP = "The current node timed out during startup"
# The rest of Ray's fixed ports would collide with those of another cluster of this machine.
_PORTS = ("--min-worker-port", "0", "--max-worker-port", "0", "--object-store-memory", str(80 * 1024**2))


class Unavailable(Exception):
    """This machine cannot run it, and why."""


def ray_program() -> str:
    """Ray's command. Raises `Unavailable` where it is not installed."""
    found = shutil.which("ray", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None or sys.platform != "linux":
        raise Unavailable("Ray is not installed here: pip install 'openenv[ray]'")
    return found


class RayNode:
    """One node, as `ray start --block` runs it: a process group of its own."""

    def __init__(self, arguments: list[str], variables: dict[str, str], log: Path):
        self.log = log
        self._command = [ray_program(), "start", "--block", "--disable-usage-stats", *_PORTS, *arguments]
        self._variables = {**os.environ, **variables}
        self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("w") as said:
            return subprocess.Popen(
                self._command,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it has started. `ray start` gives up after 30 s, a constant of Ray: then it is started again."""
        limit = time.monotonic() + START_S
        while not _STARTED.search(text := self.log.read_text()):
            ended = self._child.poll() is not None
            if time.monotonic() > limit or (ended and _GAVE_UP not in text):
                raise Unavailable(f"Ray does not start: {text[-1000:]}")
            if ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
                self._child = self._start()
            time.sleep(0.05)

    def pids(self) -> list[int]:
        """All its processes, workers included."""
        return [] if self._child.poll() is not None else process_tree([self._child.pid])

    def kill(self) -> None:
        """It is gone from one moment to the other, with all that ran there."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait(END_S)

    def end(self) -> None:
        """Ends it: asks first."""
        pids = self.pids()
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()


class RayCluster:
    """A head and `nodes - 1` further nodes.

    Attributes:
        address: As for `ray.init`.
        variables: What every process needs that is to speak to it.
        head: The head.
        nodes: Further nodes.
    """

    def __init__(self, nodes: int = 2, cpus: int = 8, gpus: int = 2, base: str = "127.0.77"):
        self._count, self._sizes, self._base = nodes, ["--num-cpus", str(cpus), "--num-gpus", str(gpus)], base
        self.address = f"{base}.1:{free_port(f'{base}.1')}"
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",
            # A node that is gone refuses connections, and is given up after four of them. One that is slow to
            # answer, as all are on a loaded machine while they start, is not.
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_timeout_ms": "20000",
            "RAY_health_check_failure_threshold": "4",
            "RAY_raylet_start_wait_time_s": "180",  # of the raylet; `ray start` itself has a constant
        }
        self.nodes: list[RayNode] = []

    def __enter__(self) -> Self:
        ray_program()
        # Sockets have short names: not in the folders of pytest.
        self._folder = Path(tempfile.mkdtemp(prefix="oe-ray-"))
        host, _, port = self.address.partition(":")
        ports = ["--ray-client-server-port", str(free_port()), "--dashboard-port", str(free_port())]
        arguments = ["--head", "--port", port, "--node-ip-address", host, "--temp-dir", str(self._folder)]
        arguments += ["--include-dashboard", "false", *ports]
        self.nodes = []
        try:
            self.head = RayNode(
                [*arguments, "--include-dashboard", "false", *ports, *self._sizes], self._own, self._log()
            )
            self.head.wait()
            for _ in range(self._count - 1):
                self.add()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def _own(self) -> dict[str, str]:
        return {name: value for name, value in self.variables.items() if name != "RAY_ADDRESS"}

    def _log(self) -> Path:
        return self._folder / f"node-{len(self.nodes)}.log"

    def add(self) -> RayNode:
        """A further node."""
        host = f"{self._base}.{len(self.nodes) + 2}"
        node = RayNode(["--address", self.address, "--node-ip-address", host, *self._sizes], self._own, self._log())
        self.nodes.append(node)
        node.wait()
        return node

    def close(self) -> None:
        """Ends all of it."""
        for node in [*reversed(self.nodes), *([self.head] if hasattr(self, "head") else [])]:
            node.end()
        shutil.rmtree(self._folder, ignore_errors=True)
