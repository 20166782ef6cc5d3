"""The Ray actor that runs one server on a node and restarts it. Imported on the nodes."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .._backoff import Backoff
from ..settings import environ_of_environments
from .local import LISTENING
from .process import Process, free_port, is_free
from .spec import LaunchSpec
from .uv import UVProvider

# Seconds between the end of a server and its restart, at first and at most; each pause is twice as long.
PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
# Seconds between two connection attempts to a command's port: a command may not log that it listens.
GLANCE_S = 0.05


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """The server that an actor runs.

    Attributes:
        spec: The specification.
        folder: Working folder of the server, from which it also imports modules. None for that of the actor.
        variables: Environment variables of the server, with the key, added to those of its node.
        start_timeout_s: Seconds until it listens.
        restarts: Maximum number of restarts.
    """

    spec: LaunchSpec
    folder: str | None
    variables: Mapping[str, str] = field(repr=False)
    start_timeout_s: float
    restarts: int


@dataclass(frozen=True, slots=True)
class ActorReport:
    """The state of a server.

    Attributes:
        url: Its address, while it listens.
        end: How it has ended for good, phrased to follow "the server". None while it runs or starts.
        log: The end of its log, with secrets masked, if it has ended.
    """

    url: str | None
    end: str | None
    log: str = ""


class ServerActor:
    """One server, as a child process that ends with the actor. Its methods may be called concurrently.

    Args:
        plan: The server to run. Ray keeps it in its control store, to restart the actor on another node.
        host: Address of the node; None asks Ray.
    """

    def __init__(self, plan: ActorPlan, host: str | None = None):
        self._plan = plan
        if host is None:
            import ray.util

            host = str(ray.util.get_node_ip_address())
        self._host = host
        self._port = plan.spec.port or 0
        self._process: Process | None = None
        self._listening = False
        self._end: str | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="openenv-ray-server", daemon=True).start()

    def report(self, wait_s: float = 0.0) -> ActorReport:
        """Waits up to `wait_s` until the server listens or has ended for good. Returns its state."""
        with self._changed:
            self._changed.wait_for(lambda: self._listening or self._end is not None, wait_s)
            end = self._end
            host = f"[{self._host}]" if ":" in self._host else self._host
            url = f"http://{host}:{self._port}" if self._listening and end is None else None
        return ActorReport(url, end, "" if end is None else self.tail())

    def tail(self) -> str:
        """The end of its log; secrets are masked."""
        process = self._process
        return "" if process is None else process.tail

    def stop(self) -> None:
        """Ends the server for good. May be called repeatedly."""
        self._finish("was stopped")
        process = self._process
        if process is not None:
            process.stop()

    def _run(self) -> None:
        """Runs and restarts the server. Its thread must outlive the server, or the kernel kills the server."""
        backoff = Backoff(PAUSE_S, LONGEST_PAUSE_S)
        for left in range(self._plan.restarts, -1, -1):
            try:
                end, served = self._serve()
            except Exception as error:  # noqa: BLE001 - the report names it
                end, served = f"could not be started: {error}", False
            # A server that never listened would fail again.
            if not served or not left or self._end is not None:
                self._finish(end)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._end is not None, backoff.grow())

    def _serve(self) -> tuple[str, bool]:
        """Runs a server to its end; returns how it ended, and whether it ever listened."""
        with self._changed:
            if self._end is not None:
                return self._end, False
            spec = self._plan.spec
            if self._port and spec.port is None and not is_free(self._port, self._host):
                self._port = 0  # otherwise keep the port: clients reconnect to it
            if not self._port and spec.command is not None:
                self._port = free_port(self._host)
            command, variables, folder = self._inherited()
            variables.pop("RAY_AUTH_TOKEN", None)  # the token gives full control of the cluster
            variables |= self._plan.variables
            if spec.command is not None:
                command = list(spec.command)
                variables |= {"PORT": str(self._port), "HOST": self._host}
            self._process = process = Process(command, variables, folder)
        port = self._awaited(process)
        if port is None:
            end = process.end or f"did not listen within {self._plan.start_timeout_s:g} s"
            process.stop()
            return end, False
        with self._changed:
            self._port, self._listening = port, True
            self._changed.notify_all()
        process.wait()
        with self._changed:
            self._listening = False
        process.stop()  # ends its children, too
        return process.end or "has ended", True

    def _inherited(self) -> tuple[list[str], dict[str, str], Path | None]:
        """The command line of a server, the variables of its node, and its working folder."""
        spec = self._plan.spec
        if spec.project is not None:
            uv = UVProvider(host=self._host)
            return uv.command(spec, self._port), uv.environment(), uv.folder(spec)
        served = [str(spec.target), "--host", self._host, "--port", str(self._port)]
        folder = None if self._plan.folder is None else Path(self._plan.folder)
        return [sys.executable, "-m", "openenv", "serve", *served], environ_of_environments(), folder

    def _awaited(self, process: Process) -> int | None:
        """Waits until it listens; returns its port, or None if it does not in time."""
        if self._plan.spec.command is None:
            found = process.wait_for(LISTENING, self._plan.start_timeout_s)
            return None if found is None else int(found[1])
        limit = time.monotonic() + self._plan.start_timeout_s
        while process.end is None and time.monotonic() < limit:
            try:
                socket.create_connection((self._host, self._port), timeout=1.0).close()
            except OSError:
                time.sleep(GLANCE_S)
            else:
                return self._port
        return None

    def _finish(self, end: str) -> None:
        with self._changed:
            self._end = self._end or end
            self._changed.notify_all()
