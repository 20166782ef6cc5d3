"""Talks to a service of the host, on every address."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import socket

for address in ("127.0.0.1", "::1", "10.0.2.2", "172.17.0.1"):
    try:
        with socket.create_connection((address, HOST["tcp"]), timeout=0.2) as talk:
            talk.sendall(b"hello")
            print(ESCAPED, talk.recv(5))
            break
    except OSError as error:
        print(error)
