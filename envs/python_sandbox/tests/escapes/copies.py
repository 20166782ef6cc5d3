"""Forks, and lets the copy answer in its place."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: ok error

import os
import time

if os.fork() == 0:
    time.sleep(0.05)
print("done")
