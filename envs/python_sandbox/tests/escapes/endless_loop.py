"""Never ends."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: timeout

while True:
    pass
