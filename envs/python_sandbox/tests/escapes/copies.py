"""Makes a copy of itself that answers in its place."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: ok error

import os
import time

if os.fork() == 0:
    time.sleep(0.05)
print("done")
