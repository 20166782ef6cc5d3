"""Links a secret of the host into its own folder."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import os

try:
    os.link(HOST["secret_file"], HOST["beside"])
    print(ESCAPED, open(HOST["beside"]).read())
except OSError as error:
    print(error)
try:
    os.rename("/inside/worker.py", "/desk/worker.py")
    print(ESCAPED)
except OSError as error:
    print(error)
