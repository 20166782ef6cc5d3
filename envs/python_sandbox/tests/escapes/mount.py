"""Mounts something."""
# ruff: noqa
# without the sandbox: escapes as root
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for place in (HOST["folder"], "/desk", "/tmp"):
    if libc.mount(b"none", place.encode(), b"tmpfs", 0, None) == 0:
        print(ESCAPED)
        libc.umount2(place.encode(), 2)
        break
    print(os.strerror(ctypes.get_errno()))
