"""Who has a port, as far as this process may know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..providers.secrecy import masked

__all__ = ["holder_of"]

PROC = Path("/proc")
# In the tables of /proc/net: a socket that listens.
_LISTENS = "0A"
# What of a command line is shown.
WIDTH = 100
_SECRET = re.compile(r"((?:key|token|secret|password)\S*?[ =])\S+", re.IGNORECASE)


def holder_of(port: int) -> str:
    """The process that listens on a TCP port, with its command line; `another process` where that cannot be known."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for pid in _processes():
        with suppress(OSError):
            if any(_link(entry) in sockets for entry in (PROC / str(pid) / "fd").iterdir()):
                return f"process {pid} ({_command(pid)})"
    return "another process"


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTENS:
                    yield fields[9]


def _processes() -> list[int]:
    """All of them, the oldest first: of several that share a socket, that is the one who opened it."""
    with suppress(OSError):
        return sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return []


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:  # closed meanwhile
        return ""


def _command(pid: int) -> str:
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        text = "".join(each if each.isprintable() else "?" for each in " ".join(words))
        if text:
            return masked(_SECRET.sub(r"\1***", text), ())[:WIDTH]
    return "its command cannot be read"
