"""Memory that a server and a client on one machine share, without a file: sealed, and proven by a token."""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import sys
import tempfile
import weakref
from hashlib import sha256
from typing import Any

from ._files import fcntl

# The token's place. The rest begins where the lines of any processor's cache do.
_HEAD_BYTES = 64
_TOKEN_BYTES = 32
# `fcntl` of Python 3.11 lacks it: no process can map the memory for writing from now on.
_F_SEAL_FUTURE_WRITE = 0x10
_UNAVAILABLE = "this system has no memory files"


def memory_file(name: str) -> int:
    """A new file without a path, for processes that get its descriptor: in memory on Linux, on disk elsewhere.

    Args:
        name: Its name for tools that inspect the process.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedSegment:
    """Memory of this process that others can open by process id and descriptor. It dies with its last user.

    Args:
        size: Bytes of `data`.

    Attributes:
        descriptor: For `open_segment`, until `withdraw`.
        token: Proves that a process has opened the memory, and no other memory of the same number.
        data: The memory, writable here only.

    Raises:
        OSError: This system has no such memory.
    """

    descriptor: int
    token: str
    data: memoryview
    withdraw: weakref.finalize[..., Any]

    def __init__(self, size: int):
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            raise OSError(_UNAVAILABLE)
        self.descriptor = os.memfd_create("openenv-arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.withdraw = weakref.finalize(self, os.close, self.descriptor)
        """Closes the descriptor: no further process can open the memory. May be called repeatedly."""
        os.ftruncate(self.descriptor, _HEAD_BYTES + size)
        memory = mmap.mmap(self.descriptor, _HEAD_BYTES + size)
        memory.madvise(mmap.MADV_DONTFORK)  # processes that this one forks do not keep it alive
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)
        memory[:_TOKEN_BYTES] = self.token.encode()
        # Its size is final: a client that shrinks it would kill the server at its next access, and the reverse.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.data = memoryview(memory)[_HEAD_BYTES:]


def digest_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal."""
    return sha256(token.encode()).hexdigest()


def open_segment(process: int, descriptor: int) -> tuple[str, memoryview]:
    """Opens the memory of a `SharedSegment` of another process. Both run as one user, in one PID namespace.

    Returns:
        The token, and the data, read-only.

    Raises:
        OSError: There is none, it cannot be opened by this process, or it is no sealed memory.
    """
    if sys.platform != "linux":
        raise OSError(_UNAVAILABLE)
    # Nothing happens if it is something else: a terminal, a pipe.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    opened = os.open(f"/proc/{process}/fd/{descriptor}", flags)
    try:
        facts = os.fstat(opened)
        sealed = fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        if not stat.S_ISREG(facts.st_mode) or not sealed or facts.st_size < _HEAD_BYTES:
            raise OSError(f"descriptor {descriptor} of process {process} is no sealed memory")
        memory = memoryview(mmap.mmap(opened, facts.st_size, prot=mmap.PROT_READ))
    finally:
        os.close(opened)
    return bytes(memory[:_TOKEN_BYTES]).decode("ascii", "replace"), memory[_HEAD_BYTES:]
