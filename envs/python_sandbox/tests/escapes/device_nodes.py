"""Creates device nodes of disks and memory, and reads the existing ones."""
# ruff: noqa
# without the sandbox: escapes as root
# ends: ok error

import os
import stat

for number, (kind, major, minor) in enumerate(((stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 8, 0), (stat.S_IFCHR, 1, 11))):
    try:
        os.mknod(f"node{number}", kind | 0o600, os.makedev(major, minor))
        print(ESCAPED, major, minor)
    except OSError as error:
        print(error)
for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "fuse", "kvm", "tty", "ptmx", "net/tun"):
    try:
        os.close(os.open(f"/dev/{name}", os.O_RDWR))
        print(ESCAPED, name)
    except OSError as error:
        print(error)
