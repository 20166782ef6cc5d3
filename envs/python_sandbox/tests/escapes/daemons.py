"""Leaves a process in a new process group and session."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import os
import time

reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writing, b"%d" % os.getpid())
        for descriptor in range(3):
            os.close(descriptor)
        while True:
            time.sleep(0.01)
            try:
                open(HOST["folder"] + "/escaped", "a").write("x")
            except OSError:
                pass
    os._exit(0)
os.wait()
print("daemon", os.read(reading, 20).decode())
for _ in range(200):
    time.sleep(0.01)
    if os.path.exists(HOST["folder"] + "/escaped"):
        print(ESCAPED)
        break
    if os.getppid() == 1:
        break
