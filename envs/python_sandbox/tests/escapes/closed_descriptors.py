"""Closes everything that is open."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: ok error crashed timeout

import os

os.closerange(0, 1000)
