"""Prints without end."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: timeout

import os

while True:
    os.write(1, b"x" * 65536)
