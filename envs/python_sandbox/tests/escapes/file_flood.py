"""Makes empty files without end, which take the kernel's memory."""
# ruff: noqa
# without the sandbox: not run: it would fill the disk
# ends: limit

import itertools

for number in itertools.count():
    open(f"/desk/{number}", "w").close()
