"""Kills its own process group."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: crashed

import os
import signal

os.killpg(0, signal.SIGTERM)
