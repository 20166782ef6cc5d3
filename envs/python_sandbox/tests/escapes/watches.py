"""Takes file watches, which the kernel limits per user."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for call in (libc.inotify_init1, lambda flags: libc.fanotify_init(flags, 0)):
    print(ESCAPED if call(0) >= 0 else os.strerror(ctypes.get_errno()))
