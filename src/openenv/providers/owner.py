"""Labels that name the process which started something, so that leftovers of dead processes can be found."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

PROVIDER = "openenv.provider"
"""Label of all started objects: the class of their provider."""
DEPLOYMENT = "openenv.deployment"
"""Label of all started objects: the name of their deployment."""
OWNER = "openenv.owner"
"""Label of all started objects: the process that started them, as `OwnerProcess` writes it."""


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """The identity of a process, unique across machines and time.

    Attributes:
        host: Its machine's name and identity.
        space: Boot id and PID namespace, the scope of its PID.
        pid: Its PID.
        born: Its start time, in the kernel's clock ticks since boot.
    """

    host: str
    space: str
    pid: int
    born: str

    @classmethod
    def this(cls) -> Self:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """A process of this machine."""
        return cls(_machine(), _space(), pid, _start_time(pid) or _UNKNOWN)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parses an owner as `str` writes it; None for any other text."""
        try:
            host, space, number, born = text.split("_")
            pid = int(number)
        except ValueError:
            return None
        return cls(host, space, pid, born) if pid > 0 else None

    def __str__(self) -> str:
        # A valid label value of Kubernetes: at most 63 letters, digits, ".", "-" or "_", with a letter or a digit at
        # both ends.
        return f"{self.host}_{self.space}_{self.pid}_{self.born}"

    @property
    def alive(self) -> bool | None:
        """Whether it still runs. None if this process cannot see that.

        False only if it is certain, since leftovers of a dead process are removed.
        """
        if self.host != _machine() or _UNKNOWN in {self.space, self.born, _space()}:
            return None
        if self.space == _space():
            born = _start_time(self.pid)
            return None if born == _UNKNOWN else born == self.born
        boot, _, namespace = self.space.partition("-")
        here = _space().partition("-")
        # Another boot of this machine, another container on it, or a container elsewhere with the same identity:
        # only outside containers does the identity belong to the machine.
        rebooted = boot != here[0] and namespace == here[2] == _FIRST_NAMESPACE
        return False if rebooted and _identity() else None


_UNKNOWN = "0"
# The PID namespace of a machine itself (PROC_PID_INIT_INO of the kernel).
_FIRST_NAMESPACE = str(0xEFFFFFFC)


def _machine() -> str:
    name = socket.gethostname()
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:11].strip("-")
    digest = hashlib.sha256(f"{name} {_identity()}".encode()).hexdigest()
    return f"{readable or 'host'}-{digest[:8]}"


@cache
def _identity() -> str:
    """The machine's id, which differs between machines of the same name, or "" if it has none."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


@cache
def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")[:12]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return _UNKNOWN


def _start_time(pid: int) -> str | None:
    """The start time of a process. None if it does not run. (proc(5), /proc/PID/stat, field 22.)"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        try:  # the process may be hidden from this user (`hidepid` of proc(5))
            os.kill(pid, 0)
        except PermissionError:
            return _UNKNOWN
        except (ProcessLookupError, OverflowError):
            return None
        return _UNKNOWN
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
