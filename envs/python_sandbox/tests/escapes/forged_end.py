"""Reports its end too early, and continues."""
# ruff: noqa
# without the sandbox: not run: there is no grader
# ends: ok error limit timeout

import os
import struct

for descriptor in range(3, 64):
    try:
        os.write(descriptor, struct.pack("<I", 12) + b'D{"value": 1')
        os.write(descriptor, struct.pack("<I", 0xFFFFFFFF) + b"x" * 100)
        os.write(descriptor, struct.pack("<I", 3) + b"D[[" + b"[" * 5000)
    except OSError:
        pass
while True:
    pass
