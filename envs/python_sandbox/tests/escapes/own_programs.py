"""Changes the programs that run it, to affect later sessions."""
# ruff: noqa
# without the sandbox: not run: it would change them
# ends: ok error

import json
import os

for path in ("/inside/supervisor.py", "/inside/worker.py", json.__file__, os.__file__, "/usr/bin/env", "/bin/sh"):
    for attempt in (lambda: open(path, "a"), lambda: os.unlink(path), lambda: os.chmod(path, 0o777)):
        try:
            attempt()
            print(ESCAPED, path)
        except OSError as error:
            print(error)
