"""Ends its own group of processes."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: crashed

import os
import signal

os.killpg(0, signal.SIGTERM)
