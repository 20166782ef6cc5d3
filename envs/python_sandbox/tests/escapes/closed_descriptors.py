"""Closes all descriptors."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: ok error crashed timeout

import os

os.closerange(0, 1000)
