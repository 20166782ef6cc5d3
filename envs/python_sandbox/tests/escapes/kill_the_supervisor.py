"""Sends every signal to its parent, then to all processes that it can reach."""
# ruff: noqa
# without the sandbox: not run: it would end all processes of its user
# ends: crashed timeout

import os
import signal

for number in signal.valid_signals():
    try:
        os.kill(os.getppid(), number)
    except OSError as error:
        print(error)
try:
    os.kill(-1, signal.SIGKILL)
except OSError as error:
    print(error)
os.killpg(0, signal.SIGKILL)
