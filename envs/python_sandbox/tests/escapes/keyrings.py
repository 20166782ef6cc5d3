"""Puts a key into the kernel's keyring, where other processes of its user find it."""
# ruff: noqa
# without the sandbox: not run: the host's keyring would keep it
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
for ring in (-3, -4, -5):
    at = libc.syscall(add_key, b"user", b"escape", b"x", 1, ring)
    print(ESCAPED if at >= 0 else os.strerror(ctypes.get_errno()))
at = libc.syscall(keyctl, 0, -4, 1)
print(ESCAPED if at >= 0 else os.strerror(ctypes.get_errno()))
