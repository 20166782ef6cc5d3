"""Fills the buffers of connections to itself: memory of the kernel that no process limit counts."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import socket

for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_UNIX, "\0held")):
    try:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        sender = socket.socket(family)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        sender.connect(listener.getsockname())
        print(ESCAPED, sender.send(b"x" * 65536))
    except OSError as error:
        print(error)
