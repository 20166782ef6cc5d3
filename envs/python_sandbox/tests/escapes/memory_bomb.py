"""Takes 64 GiB, in one process and in many."""
# ruff: noqa
# without the sandbox: not run: it would take the machine
# ends: timeout limit crashed error

import os

held = []
for _ in range(8):
    try:
        if os.fork() == 0:
            break
    except OSError:
        break
while len(held) < 8192:
    try:
        held.append(bytearray(b"x") * (8 * 1024 * 1024))
    except MemoryError:
        pass
print(ESCAPED)
