"""Leaves a file on the host."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

for path in (
    HOST["folder"] + "/escaped",
    "/usr/escaped",
    "/etc/escaped",
    "/dev/escaped",
    "/escaped",
    "/inside/escaped",
):
    try:
        open(path, "w").write("x")
        print(ESCAPED)
        break
    except OSError as error:
        print(error)
