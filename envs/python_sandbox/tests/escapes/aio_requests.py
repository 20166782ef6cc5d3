"""Takes asynchronous requests of the kernel, which limits them for the whole machine."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
setup, destroy = {"x86_64": (206, 207), "aarch64": (0, 1)}[os.uname().machine]
context = ctypes.c_ulong(0)
if libc.syscall(setup, 8, ctypes.byref(context)) == 0:
    libc.syscall(destroy, context)
    print(ESCAPED)
else:
    print(os.strerror(ctypes.get_errno()))
