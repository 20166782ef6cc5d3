"""Never ends."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: timeout

while True:
    pass
