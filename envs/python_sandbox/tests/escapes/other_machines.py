"""Looks up a host name, and connects to the metadata service of a cloud, which has keys."""
# ruff: noqa
# without the sandbox: not run: it would ask other machines
# ends: ok error

import socket

for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("fd00:ec2::254", 80)),
):
    with socket.socket(family, kind) as talk:
        talk.settimeout(0.2)
        try:
            talk.connect(address)
            talk.send(b"hello")
            print(ESCAPED, address)
        except OSError as error:
            print(error)
try:
    print(ESCAPED, socket.getaddrinfo("example.org", 80))
except OSError as error:
    print(error)
