"""The start of a warm parent: imports the environment, and then forks."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import BinaryIO

import msgspec

from . import linux
from .plan import FAILED, MESSAGE_BYTES
from .zygote import Zygote

__all__ = ["main"]


def main(road: int, file: BinaryIO) -> None:
    """Runs a warm parent.

    Args:
        road: Descriptor of the socket that leads to the server.
        file: Its `Plan` and working directory, pickled.
    """
    control = socket.socket(fileno=road)
    with file:
        plan, cwd = pickle.load(file)  # noqa: S301 - the server's own
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.die_with_parent()  # while the import below may keep this process from hearing that the server is gone
    linux.adopt_orphans()
    try:
        os.chdir(cwd)
        factory = pickle.loads(plan.factory)  # noqa: S301
    except BaseException:  # noqa: BLE001 - the environment's module is foreign code
        with contextlib.suppress(OSError):
            control.send(msgspec.msgpack.encode([FAILED, 0, traceback.format_exc()[-MESSAGE_BYTES // 4 :]]))
        sys.exit(1)
    linux.die_with_parent(signal.SIGTERM)
    # What was imported is never freed: left out of collections, it stays shared between all processes.
    gc.collect()
    gc.freeze()
    Zygote(control, plan, factory).run()
