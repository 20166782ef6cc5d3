"""Prints without end."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: timeout

import os

while True:
    os.write(1, b"x" * 65536)
