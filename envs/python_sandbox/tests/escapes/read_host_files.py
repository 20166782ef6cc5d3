"""Reads a secret of the host, and its users."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

for path in (HOST["secret_file"], "/etc/shadow", "/etc/passwd", "/etc/hostname"):
    try:
        print(ESCAPED, open(path).read()[:20])
    except OSError as error:
        print(error)
