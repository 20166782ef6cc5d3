"""Ends the interpreter at once, as if all were well."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: crashed

import os

os._exit(0)
