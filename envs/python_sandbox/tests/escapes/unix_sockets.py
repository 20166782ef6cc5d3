"""Talks to sockets of the host: one in a folder, one with an abstract name."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import socket

for address in (HOST["unix"], "\0" + HOST["abstract"]):
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(0.2)
        try:
            talk.connect(address)
            talk.sendall(b"hello")
            print(ESCAPED, talk.recv(5))
        except OSError as error:
            print(error)
