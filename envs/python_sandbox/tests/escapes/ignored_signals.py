"""Ignores every signal, blocks all of them, and never ends."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: timeout

import signal

for number in signal.valid_signals():
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
