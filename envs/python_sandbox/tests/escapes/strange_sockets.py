"""Opens sockets of families that have no network namespaces, or that give access to the kernel."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import socket

for family in (16, 17, 38, 40, 44):  # netlink, packet, alg, vsock, xdp
    for kind in (socket.SOCK_RAW, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            print(ESCAPED, family, kind)
        except OSError as error:
            print(error)
