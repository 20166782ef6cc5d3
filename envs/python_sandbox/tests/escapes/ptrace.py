"""Attaches to its parent and to a process of the host."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for pid in (HOST["pid"], os.getppid()):
    if libc.ptrace(16, pid, None, None) == 0:
        print(ESCAPED)
        os.waitpid(pid, 0)
        libc.ptrace(17, pid, None, None)
        break
    print(os.strerror(ctypes.get_errno()))
