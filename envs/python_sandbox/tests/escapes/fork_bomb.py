"""Forks without end."""
# ruff: noqa
# without the sandbox: not run: it would take the machine
# ends: timeout limit crashed

import os

while True:
    try:
        os.fork()
    except OSError:
        pass
