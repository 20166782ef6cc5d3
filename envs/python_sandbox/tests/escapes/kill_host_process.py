"""Kills a process of the host by its id."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import os

try:
    os.kill(HOST["pid"], 0)
    print(ESCAPED)
    os.kill(HOST["pid"], 9)
except OSError as error:
    print(error)
try:
    os.pidfd_open(HOST["pid"])
    print(ESCAPED)
except OSError as error:
    print(error)
