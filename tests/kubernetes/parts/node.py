"""A node: containerd and kubelet in namespaces of their own, a network bridge, and cgroups; all gone when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .images import PAUSE, write_archive
from .programs import Program, tail, until

__all__ = ["Node", "network"]

NAME = "node-1"
STARTS_S = 240.0  # a bound that says when to give up: some seconds where nothing else runs
# What kubelet and the network plugins set for the whole machine: here, for nobody.
_SET = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_CONTAINERD = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{programs}/usr/sbin/runc"
      SystemdCgroup = false
"""
# The first process of the node: with it, all others end and all mounts go. What programs write to fixed places is
# in memory, and theirs alone.
_FIRST = """
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
for setting in {settings}; do
  mkdir -p {folder}/settings/$(dirname $setting)
  cat /proc/sys/$setting >{folder}/settings/$setting
  mount --bind {folder}/settings/$setting /proc/sys/$setting
done
{containerd} >>{folder}/containerd.log 2>&1 &
{kubelet} >>{folder}/kubelet.log 2>&1 &
wait
"""


@contextlib.contextmanager
def network(name: str) -> Iterator[str]:
    """A bridge for Pods that ends with the block; what the addresses of its network begin with."""
    taken = _ip("-o -4 addr")
    # By chance: several clusters may begin at once.
    start = next(each for each in iter(_start_by_chance, None) if each not in taken)
    _ip(f"link add {name} type bridge")
    try:
        _ip(f"addr add {start}1/24 dev {name}")
        _ip(f"link set {name} up")
        yield start
    finally:
        _ip(f"link delete {name}")


def _start_by_chance() -> str:
    return f"10.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}."


def _ip(arguments: str) -> str:
    return subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def cgroups(name: str) -> Iterator[None]:
    """A cgroup for all Pods, in every hierarchy, that ends with the block."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    places = [Path(mount[1], name) for mount in mounts if mount[2] in {"cgroup", "cgroup2"}]
    try:
        for place in places:
            place.mkdir()
        yield
    finally:
        for place in places:
            for folder, _, _ in os.walk(place, topdown=False):
                until(lambda folder=folder: _removed(Path(folder)), STARTS_S, f"{folder} does not become empty")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


class Node:
    """A kubelet with containerd.

    Args:
        programs: The cache of `scripts/install_kubernetes`.
        folder: Where its files are; short, since it has sockets.
        name: What its bridge and its cgroups are called.
        start: What the addresses of its Pods begin with.
    """

    def __init__(self, programs: Path, folder: Path, name: str, start: str):
        self._programs, self._folder, self._name, self._start = programs, folder, name, start
        self._ends = contextlib.ExitStack()
        self._first: Program | None = None

    @property
    def address(self) -> str:
        return f"{self._start}1"

    @property
    def tails(self) -> dict[str, str]:
        """The end of what each of its programs says."""
        return {name: tail(self._folder / f"{name}.log") for name in ("containerd", "kubelet")}

    def run(self, kubelet: dict[str, object], kubeconfig: Path) -> None:
        """Starts it, and waits until containerd has the images.

        Args:
            kubelet: Its configuration, but for what only the node knows.
            kubeconfig: Who it is for the API server.
        """
        self._ends.enter_context(cgroups(self._name))
        self._write(kubelet)
        folder, programs = self._folder, self._programs
        self._first = Program(
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
                "-c",
                _FIRST.format(
                    folder=folder,
                    settings=" ".join(each for each in _SET if Path("/proc/sys", each).exists()),
                    containerd=f"{programs}/usr/bin/containerd -c {folder}/containerd.toml",
                    kubelet=shlex.join(
                        [
                            f"{programs}/usr/bin/kubelet",
                            f"--config={folder}/kubelet.json",
                            f"--kubeconfig={kubeconfig}",
                            f"--root-dir={folder}/kubelet",
                            f"--cert-dir={folder}/kubelet-pki",
                            f"--hostname-override={NAME}",
                            f"--node-ip={self.address}",
                            "--container-runtime=remote",
                            f"--container-runtime-endpoint=unix://{folder}/containerd.sock",
                        ]
                    ),
                ),
            ],
            folder / "node.log",
            self._variables,
        )
        self._ends.callback(self._end)
        self._first.start()
        write_archive(folder / "images.tar", programs / "usr/bin/pause")
        until(lambda: self._imported(folder / "images.tar"), STARTS_S, "containerd takes no images")

    def close(self) -> None:
        """Ends all of it. May be called repeatedly."""
        self._ends.close()

    @contextlib.contextmanager
    def frozen_kubelet(self) -> Iterator[None]:
        """The kubelet does nothing until the block ends; its Pods go on."""
        pid = self._pid_of("kubelet")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @property
    def _variables(self) -> dict[str, str]:
        programs = self._programs
        places = [f"{programs}/usr/bin", f"{programs}/usr/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        return {"PATH": ":".join(places), "LD_LIBRARY_PATH": f"{programs}/usr/lib/x86_64-linux-gnu", "HOME": "/tmp"}

    def _write(self, kubelet: dict[str, object]) -> None:
        folder = self._folder
        folder.mkdir()
        (folder / "cni").mkdir()
        ranges = [[{"subnet": f"{self._start}0/24", "gateway": self.address}]]
        plugin = {
            "type": "bridge",
            "bridge": self._name,
            "isGateway": True,
            "ipam": {"type": "host-local", "dataDir": f"{folder}/addresses", "ranges": ranges},
        }
        (folder / "cni" / "10-net.conflist").write_text(
            json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]})
        )
        (folder / "containerd.toml").write_text(
            _CONTAINERD.format(folder=folder, programs=self._programs, pause=PAUSE)
        )
        (folder / "resolv.conf").write_text("")
        more = {
            "cgroupRoot": f"/{self._name}",
            "resolvConf": f"{folder}/resolv.conf",
            "volumePluginDir": f"{folder}/plugins",
        }
        (folder / "kubelet.json").write_text(json.dumps({**kubelet, "address": self.address, **more}))

    def _imported(self, archive: Path) -> bool:
        assert self._first is not None
        self._first.check()
        command = [f"{self._programs}/usr/bin/ctr", "--address", f"{self._folder}/containerd.sock", "-n", "k8s.io"]
        done = subprocess.run([*command, "images", "import", str(archive)], capture_output=True, check=False)
        return done.returncode == 0

    def _pid_of(self, program: str) -> int:
        """The process of a program of this node, as this process knows it."""
        assert self._first is not None
        seen, waiting = [], [self._first.pid]
        while waiting:
            pid = waiting.pop()
            seen.append(pid)
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name == program:
                    return pid
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    waiting += [int(child) for child in children.read_text().split()]
        raise AssertionError(f"no {program} among the processes {seen}")

    def _end(self) -> None:
        assert self._first is not None
        self._first.end(signal.SIGKILL)  # of the first process's parent: the whole of the namespace goes with it
