"""Sends a datagram to the host."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import socket

talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talk.settimeout(0.2)
try:
    talk.sendto(b"hello", ("127.0.0.1", HOST["udp"]))
    print(ESCAPED, talk.recv(5))
except OSError as error:
    print(error)
