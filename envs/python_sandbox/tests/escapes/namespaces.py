"""Creates namespaces, in which it would be root."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):  # user, mount, network, process
    if libc.unshare(flag) == 0:
        print(ESCAPED, hex(flag))
    else:
        print(os.strerror(ctypes.get_errno()))
