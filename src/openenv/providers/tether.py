"""Processes that do not outlive the one that started them, however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["tethered"]

# Asks the kernel for a signal at its parent's death, and becomes the command. Run before the command and not between
# fork and exec, where a process that has threads must not run Python.
_TETHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit("the process that started this one is gone")
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error: sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def tethered(command: Sequence[str]) -> list[str]:
    """A command that gets SIGTERM when the thread that starts it ends: as it is, where the kernel does not tell."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *command]
