"""Raises the buffers of a socket pair above their default size."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import socket

for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):  # the last two: by force
    one, other = socket.socketpair()
    try:
        before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        one.setsockopt(socket.SOL_SOCKET, option, 1 << 24)
        print(ESCAPED, option)
    except OSError as error:
        print(error)
