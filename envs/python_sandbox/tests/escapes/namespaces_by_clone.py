"""Creates namespaces by clone and clone3. The flags of clone3 are in memory, hidden from a filter."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
pid = libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
print(ESCAPED if pid > 0 else os.strerror(ctypes.get_errno()))
arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)
pid = libc.syscall(435, arguments, ctypes.sizeof(arguments))
if pid == 0:
    os._exit(0)
print(ESCAPED if pid > 0 else os.strerror(ctypes.get_errno()))
