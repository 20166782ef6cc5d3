"""A machine of the tests' own that runs systemd: this one's programs, in namespaces that end with the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .image import CHECKOUT

__all__ = ["Machine", "machine"]

START_S = 30.0
SYSTEMD = "/usr/lib/systemd/systemd"
_NEEDED = ("ip", "mount", "nsenter", "pivot_root", "setpriv", "systemctl", "unshare")
# No service of this machine is started but the journal, and what units ask for by default.
_TARGET = """
[Unit]
Description=What tests need
Wants=systemd-journald.service
DefaultDependencies=no
AllowIsolate=yes
"""
# Programs of users are at /opt, since units hide /home and /root, where those of this machine may be.
_OPENENV = """#!/bin/sh
export LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH="/opt/src:/opt/packages:$PYTHONPATH"
exec /opt/python/bin/{python} -m openenv "$@"
"""
_BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir dev etc home old opt proc root run sys tmp usr var var/lib var/log var/tmp
cp -a /bin /lib /lib64 /sbin . 2>/dev/null || true
mount --rbind -o ro /usr usr
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
chmod 1777 tmp var/tmp
mkdir -p opt/openenv/bin opt/packages opt/python opt/src etc/openenv etc/systemd/system
mount --bind -o ro "$2" opt/python
mount --bind -o ro "$3" opt/packages
mount --bind -o ro "$4" opt/src
cp -a "$5/." .
pivot_root . old
umount -l /old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin "$6" --unit=tests.target --log-target=journal
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Systemd that runs, in the network of the tests.

    Attributes:
        pid: Of its first process, in the tests' own namespace.
    """

    pid: int

    @property
    def root(self) -> Path:
        """Its files."""
        return Path(f"/proc/{self.pid}/root")

    def run(self, *command: str, check: bool = True) -> str:
        """What a command prints there."""
        inside = [
            "nsenter",
            f"--target={self.pid}",
            "--mount",
            "--pid",
            "--cgroup",
            "--uts",
            "--ipc",
            "--root",
            "--wdns=/",
        ]
        done = subprocess.run(
            [*inside, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
        return done.stdout

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Starts systemd with no unit but the journal; skips the test, with the reason, where it cannot run."""
    missing = [program for program in (*_NEEDED, SYSTEMD) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"systemd in namespaces needs {', '.join(missing)}: apt-get install systemd util-linux iproute2")
    if os.geteuid() != 0:
        pytest.skip("systemd in namespaces is started by root alone")
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    places = [mount[1] for mount in mounts if mount[2] == "cgroup2"]
    if not places:
        pytest.skip("systemd in namespaces needs a hierarchy of cgroup v2")
    with tempfile.TemporaryDirectory(prefix="oe-machine-") as folder:
        place = Path(places[0], Path(folder).name)
        _write(Path(folder, "files"))
        Path(folder, "root").mkdir()
        python, packages = sys.base_prefix, sysconfig.get_path("purelib")
        arguments = [f"{folder}/root", python, packages, f"{CHECKOUT}/src", f"{folder}/files", SYSTEMD]
        namespaces = ["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"]
        entered = f'echo $$ > {place}/cgroup.procs; exec unshare {" ".join(namespaces)} sh -c "$0" sh "$@"'
        place.mkdir()
        with Path(folder, "log").open("w") as log:
            command = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", entered, _BOOT, *arguments]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield _started(process, Path(folder, "log"))
        finally:
            process.kill()  # `unshare` ignores SIGTERM
            process.wait()
            _remove(place)


def _write(files: Path) -> None:
    """The files of the machine that are not this one's."""
    texts = {
        "etc/machine-id": "0" * 31 + "1\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        "etc/group": "root:x:0:\nnogroup:x:65534:\nsystemd-journal:x:900:\n",
        "etc/nsswitch.conf": "passwd: files systemd\ngroup: files systemd\nhosts: files\n",
        "etc/hosts": "127.0.0.1 localhost\n",
        "etc/systemd/system/tests.target": _TARGET,
        "etc/systemd/journald.conf": "[Journal]\nReadKMsg=no\nStorage=volatile\n",
        "opt/openenv/bin/openenv": _OPENENV.format(python=Path(sys.executable).resolve().name),
    }
    for name, text in texts.items():
        file = files / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (files / "opt/openenv/bin/openenv").chmod(0o755)
    (files / "etc/systemd/system/systemd-journald-audit.socket").symlink_to("/dev/null")  # audits are the kernel's


def _started(process: subprocess.Popen[bytes], log: Path) -> Machine:
    limit = time.monotonic() + START_S
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and time.monotonic() < limit:
        for child in children.read_text().split():
            found = Machine(int(child))
            if (found.root / "run/systemd/private").exists():
                return found
        time.sleep(0.02)
    pytest.skip(f"systemd cannot run in namespaces here: {log.read_text()[-500:]}")


def _remove(place: Path) -> None:
    limit = time.monotonic() + START_S
    for folder, _, _ in os.walk(place, topdown=False):
        while Path(folder).exists():
            with contextlib.suppress(OSError):  # until its last process has gone
                Path(folder).rmdir()
            assert time.monotonic() < limit, f"{folder} does not become empty"
