"""Reads and leaves shared memory, by name and by id."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
try:
    print(ESCAPED, open("/dev/shm/" + HOST["token"] + "-host").read())
except OSError as error:
    print(error)
libc.shmat.restype = ctypes.c_void_p
at = libc.shmat(HOST["segment"], None, 0o10000)
print(ctypes.string_at(at) if at != ctypes.c_void_p(-1).value else os.strerror(ctypes.get_errno()))
at = libc.shmget(HOST["udp"], 4096, 0o1000 | 0o600)
if at >= 0:
    libc.shmctl(at, 0, None)
print(ESCAPED if at >= 0 else os.strerror(ctypes.get_errno()))
at = libc.syscall({"x86_64": 319, "aarch64": 279}[os.uname().machine], b"name", 0)
print(ESCAPED if at >= 0 else os.strerror(ctypes.get_errno()))
