"""In the process of a session: another process like it, which is no child of it but of the same parent."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from . import linux

__all__ = ["fork_sibling"]

_LOOK_S, _PATIENCE_S = 0.0005, 5.0


def fork_sibling() -> int:
    """Forks this process. The new one leads a group and a session of its own, and ends with the parent of both.

    Between the two stands one that ends at once, so that the parent, which adopts orphans, has the new one. Python's
    random numbers go on in it as they do here.

    Returns:
        As `os.fork` does: 0 in the new process; its number here.

    Raises:
        OSError: It could not be made.
    """
    parent, random = os.getppid(), _state_of_random()
    reading, writing = os.pipe()
    try:
        # What is left behind from here on goes past this process to the parent of it.
        linux.adopt_orphans(False)
        between = os.fork()
        if between == 0:
            if _fork_again(writing):
                os._exit(0)
            _settle(parent, random)
            return 0
        os.close(writing)
        writing = -1
        said = os.read(reading, 200)
        with contextlib.suppress(ChildProcessError):  # the environment may have its children reaped by themselves
            os.waitpid(between, 0)
    finally:
        linux.adopt_orphans()
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if not said.isdigit():
        raise OSError(said.decode(errors="replace") or "fork failed")
    return int(said)


def _fork_again(writing: int) -> bool:
    """In the process between: forks, and says what came of it. False in the new process."""
    try:
        pid = os.fork()
        if pid == 0:
            return False
        os.write(writing, b"%d" % pid)
    except BaseException as error:  # noqa: BLE001 - a copy of the session must not go on here
        os.write(writing, str(error).encode()[:200])
    return True


def _settle(parent: int, random: Any) -> None:
    """In the new process: is one of its own."""
    try:
        limit = time.monotonic() + _PATIENCE_S
        while os.getppid() != parent and time.monotonic() < limit:
            time.sleep(_LOOK_S)
        os.setsid()
        linux.die_with_parent()
        if random is not None:  # Python has begun them anew
            sys.modules["random"].setstate(random)
        settled = os.getppid() == parent
    except BaseException:  # noqa: BLE001 - a second session must not go on where the first one is
        settled = False
    if not settled:
        os._exit(1)


def _state_of_random() -> Any:
    module = sys.modules.get("random")
    return None if module is None else module.getstate()
