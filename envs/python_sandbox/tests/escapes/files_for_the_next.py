"""Leaves files for the next session, or another one."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error
# then: again

import os

if os.path.exists("/tmp/" + HOST["token"]):
    print(ESCAPED)
for folder in ("/desk", "/tmp", "/dev/shm", "/var/tmp"):
    try:
        open(f"{folder}/{HOST['token']}", "w").write("x")
    except OSError as error:
        print(error)
