"""Looks for descriptors that it should not have."""
# ruff: noqa
# without the sandbox: not run: a test has many
# ends: ok error

import os
import stat

for descriptor in range(1024):
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        continue
    if descriptor > 4 or not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        print(ESCAPED, descriptor, oct(mode))
    print(descriptor)
print(ESCAPED if os.path.exists("/proc/self") else "")
