"""Creates empty files without end, which take memory of the kernel."""
# ruff: noqa
# without the sandbox: not run: it would fill the disk
# ends: limit

import itertools

for number in itertools.count():
    open(f"/desk/{number}", "w").close()
