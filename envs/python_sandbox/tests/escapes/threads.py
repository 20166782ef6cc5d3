"""Leaves threads that continue after the step."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: ok error
# then: run 1 + 1

import threading
import time


def on():
    while True:
        time.sleep(0.001)
        print("on", flush=True)


for _ in range(5):
    threading.Thread(target=on, daemon=True).start()
