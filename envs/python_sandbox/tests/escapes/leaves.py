"""Ends the interpreter at once with exit code 0."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: crashed

import os

os._exit(0)
