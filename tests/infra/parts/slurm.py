"""A Slurm cluster on this machine: its controller, and nodes that are hosts of their own as far as the network goes.

    with Slurm(nodes=2) as slurm:       # raises Unavailable, and says why, where it cannot be had
        os.environ |= slurm.variables   # sbatch, squeue and the others now speak to it

Nothing of it runs as a service or leaves its folder. Everything that it has started is ended by process id.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Slurm", "SlurmNode", "Unavailable"]

PROGRAMS = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "squeue",
    "scancel",
    "scontrol",
    "ip",
    "unshare",
    "nsenter",
    "setpriv",
)
# Seconds until a daemon answers, and until one has ended.
START_S, END_S = 20.0, 10.0
# Also when the tests are killed, nothing stays.
_MORTAL = ("setpriv", "--pdeathsig", "KILL", "--")
# Keeps a node's namespaces until its input ends, also while nothing else runs there.
_HOLD = 'hostname "$1" && ip link set lo up && echo held && read -r end'


class Unavailable(Exception):
    """This machine cannot run it, and why."""


@dataclass
class SlurmNode:
    """A node in a network and a host name of its own.

    Attributes:
        name: Its name, for Slurm and as host name.
        address: Its address; the controller's side of the wire is `gateway`.
        port: Of its slurmd.
        wire: Name of the interface at the controller's side.
    """

    name: str
    address: str
    gateway: str
    port: int
    wire: str
    holder: subprocess.Popen[str] | None = None
    slurmd: subprocess.Popen[bytes] | None = None

    def pids(self) -> list[int]:
        """Everything that runs there: slurmd, the steps, and the jobs."""
        if self.holder is None:
            return []
        network = Path(f"/proc/{self.holder.pid}/ns/net").stat().st_ino
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "ns" / "net").stat().st_ino == network:
                    found.append(int(folder.name))
        return [pid for pid in found if pid != self.holder.pid]

    def kill(self) -> None:
        """The node is gone from one moment to the other, with all that ran on it."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.slurmd is not None:
                self.slurmd.wait(END_S)
            time.sleep(0.01)

    def kill_jobs(self) -> None:
        """What jobs there have started is gone from one moment to the other; the node is well."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if b"SLURM_JOB_ID=" in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def wire_up(self) -> None:
        """Makes its network and its host name."""
        self.holder = holder = subprocess.Popen(
            [*_MORTAL, "unshare", "--net", "--uts", "sh", "-c", _HOLD, "sh", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert holder.stdout is not None
        if (said := holder.stdout.readline()) != "held\n":
            raise Unavailable(f"no network namespace: {said}")
        for command in (
            ["ip", "link", "add", self.wire, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid)],
            ["ip", "addr", "add", f"{self.gateway}/30", "dev", self.wire],
            ["ip", "link", "set", self.wire, "up"],
            [*self.within, "ip", "addr", "add", f"{self.address}/30", "dev", "eth0"],
            [*self.within, "ip", "link", "set", "eth0", "up"],
            [*self.within, "ip", "route", "add", "default", "via", self.gateway],
        ):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")

    @property
    def within(self) -> list[str]:
        """How a command line begins that is to run there."""
        assert self.holder is not None
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-u"]

    def end(self) -> None:
        """Kills it, and removes its network."""
        self.kill()
        if self.holder is not None:
            self.holder.communicate()
            self.holder = None


class Slurm:
    """A cluster of this process.

    Args:
        nodes: How many there are, each with 64 processors as far as Slurm knows.
        gpus: How many pretended GPUs the first node has.

    Attributes:
        nodes: Those that were asked for, by number from 0.
        folder: Where its configuration, logs and state are; gone at the end.
    """

    def __init__(self, nodes: int = 2, gpus: int = 0):
        self._number = secrets.randbelow(200) + 20
        self._gpus = gpus
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.folder = Path()
        self.nodes = [
            SlurmNode(
                f"n{number}",
                f"10.213.{self._number}.{4 * number + 2}",
                f"10.213.{self._number}.{4 * number + 1}",
                17000 + 10 * self._number + number,
                f"slm{self._number}-{number}",
            )
            for number in range(nodes)
        ]

    @property
    def variables(self) -> dict[str, str]:
        """With these, Slurm's commands speak to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def address(self) -> str:
        """This machine's, as its nodes reach it."""
        return self.nodes[0].gateway

    def __enter__(self) -> Self:
        missing = [name for name in PROGRAMS if _program(name) is None]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)} (apt-get install slurm-wlm munge iproute2)")
        if os.geteuid() != 0:
            raise Unavailable("network namespaces for its nodes need root")
        # Short: there are sockets in it, whose paths must be.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.end()
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> str:
        """One of Slurm's commands, and what it prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def jobs(self) -> list[str]:
        """The jobs that are not over, a line each."""
        return self.run("squeue", "-h", "-r", "-o", "%i %j %T %N %r").splitlines()

    def start_node(self, node: SlurmNode) -> None:
        """Starts a node; also one that was killed."""
        slurmd = [str(_program("slurmd")), "-D", "-N", node.name, "-f", str(self.folder / "slurm.conf")]
        node.slurmd = self._spawn(f"{node.name}.out", [*node.within, *slurmd])
        self._until(lambda: f"{node.name} idle" in self.run("sinfo", "-h", "-N", "-o", "%N %T"), f"node {node.name}")

    def _start(self) -> None:
        self._write()
        munge = ["--foreground", "--force", "--key-file=munge.key", "--socket=munge.socket", "--pid-file=munge.pid"]
        self._daemon("munged", *munge, "--log-file=munge.log", "--seed-file=munge.seed", "--num-threads=2")
        self._until((self.folder / "munge.socket").exists, "munged")
        # Before the controller, which listens at their gateways.
        for node in self.nodes:
            node.wire_up()
        self._daemon("slurmctld", "-D", "-i", "-f", str(self.folder / "slurm.conf"))
        self._until(lambda: "UP" in self.run("scontrol", "ping"), "slurmctld")
        for node in self.nodes:
            self.start_node(node)

    def _daemon(self, name: str, *arguments: str) -> None:
        path = _program(name)
        assert path is not None
        self._daemons.append(self._spawn(f"{name}.out", [path, *arguments]))

    def _spawn(self, log: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [*_MORTAL, *command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **self.variables},
            )

    def _until(self, there: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + START_S
        while True:
            error = ""
            try:
                if there():
                    return
            except RuntimeError as failure:
                error = str(failure)
            if time.monotonic() > limit:
                logs = "\n".join(
                    f"{log.name}: {log.read_text(errors='replace')[-1500:]}"
                    for log in (*self.folder.glob("*.out"), *self.folder.glob("*.log"))
                )
                raise Unavailable(f"{what} did not start within {START_S:g} s: {error}\n{logs}")
            time.sleep(0.05)

    def _write(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        folder = self.folder
        host = socket.gethostname().partition(".")[0]
        gres = ["gres/gpu"] if self._gpus else []
        lines = [
            "ClusterName=tests",
            f"SlurmctldHost={host}({self.address})",
            f"SlurmctldPort={16000 + self._number}",
            "AuthType=auth/munge",
            # What is requeued waits until its credentials are void.
            f"AuthInfo=socket={folder}/munge.socket,cred_expire=5",
            "SlurmUser=root",
            "SlurmdUser=root",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/%n.log",
            # No cgroups, and nothing that needs a service of the machine.
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU_Memory",
            "DefMemPerCPU=64",
            "SlurmdParameters=config_overrides",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1",
            "ReturnToService=2",
            "SlurmdTimeout=5",
            "InactiveLimit=0",
            "KillWait=30",
            "MinJobAge=300",
            *(["GresTypes=gpu"] if gres else []),
        ]
        for number, node in enumerate(self.nodes):
            gpus = f" Gres=gpu:{self._gpus}" if self._gpus and number == 0 else ""
            lines.append(
                f"NodeName={node.name} NodeAddr={node.address} Port={node.port} CPUs=64 RealMemory=65536 "
                f"Feature=rack{number}{gpus} State=UNKNOWN"
            )
        lines += [
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
            "PartitionName=short Nodes=ALL MaxTime=1 State=UP",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="ascii")
        (folder / "state").mkdir()
        if self._gpus:
            # Files that any machine has, in place of devices: Slurm numbers them.
            devices = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random"][: self._gpus]
            gpu = [f"NodeName={self.nodes[0].name} Name=gpu File={device}" for device in devices]
            (folder / "gres.conf").write_text("\n".join(gpu) + "\n", encoding="ascii")


def _program(name: str) -> str | None:
    """Daemons are where the paths of users often do not lead."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
