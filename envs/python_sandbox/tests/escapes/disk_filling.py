"""Writes until the disk is full, in every writable folder."""
# ruff: noqa
# without the sandbox: not run: it would fill the disk
# ends: ok error

import os

total = 0
for folder in ("/desk", "/tmp", "/dev/shm", "/var/tmp", "/usr/tmp", "/dev", "/inside", "/"):
    for number in range(1000):
        try:
            with open(f"{folder}/{number}", "wb") as file:
                for _ in range(64):
                    total += file.write(bytes(1024 * 1024))
        except OSError as error:
            print(folder, error)
            if os.path.exists(f"{folder}/{number}") and os.path.getsize(f"{folder}/{number}") > 1024 * 1024:
                continue
            break
print(ESCAPED if total > 100 * 1024 * 1024 else "bounded", total >> 20)
