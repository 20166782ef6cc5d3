"""Makes the next process load its code, by modules, libraries and variables."""
# ruff: noqa
# without the sandbox: not run: there is no supervisor
# ends: crashed
# then: run import json, random; print(json.__file__)
# then: again

import os

for name in ("json.py", "random.py", "worker.py", "sitecustomize.py", "usercustomize.py", "struct.py"):
    open("/desk/" + name, "w").write(f"print({ESCAPED!r})\n")
os.environ.update(LD_PRELOAD="/desk/lib.so", PYTHONPATH="/desk", PYTHONSTARTUP="/desk/json.py")
open("/desk/lib.so", "wb").write(b"\x7fELF")
os._exit(7)
