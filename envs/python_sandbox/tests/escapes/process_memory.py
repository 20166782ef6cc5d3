"""Reads the memory of other processes, by files and by a system call."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

for pid in (HOST["pid"], os.getppid(), 1):
    try:
        start = int(open(f"/proc/{pid}/maps").readline().split("-")[0], 16)
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(start)
            print(ESCAPED, memory.read(4))
    except OSError as error:
        print(error)
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(8)
for pid in (HOST["pid"], os.getppid(), 1):
    local, remote = (ctypes.c_size_t * 2)(ctypes.addressof(room), 8), (ctypes.c_size_t * 2)(id(libc), 8)
    if libc.process_vm_readv(pid, local, 1, remote, 1, 0) > 0 or ctypes.get_errno() == 14:
        print(ESCAPED)
