"""Becomes root, by system calls and by setuid programs."""
# ruff: noqa
# without the sandbox: escapes as root
# ends: ok error

import os
import subprocess

for become in (os.setuid, os.seteuid, os.setgid):
    try:
        become(0)
        print(ESCAPED, become.__name__)
    except OSError as error:
        print(error)
for words in (["su", "-c", "id"], ["sudo", "-n", "id"], ["passwd", "-S"], ["mount"], ["/usr/bin/newuidmap"]):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=2, stdin=subprocess.DEVNULL)
        if "uid=0" in done.stdout:
            print(ESCAPED, words)
    except OSError as error:
        print(error)
