"""Reads the variables of the server and of the first process."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import os

if HOST["variable"] in os.environ:
    print(ESCAPED, os.environ[HOST["variable"]])
for place in ("/proc/self/environ", "/proc/1/environ", f"/proc/{os.getppid()}/environ"):
    try:
        if HOST["variable"] in open(place, "rb").read().decode("latin-1"):
            print(ESCAPED)
    except OSError as error:
        print(error)
