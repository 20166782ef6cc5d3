"""The state of an environment in a process: sent to another process, or in a fork of its own."""

from __future__ import annotations

import os
from typing import Any

from ...errors import NotForkable, OpenEnvError
from ..executor import Done
from ..forking import Seed
from .messages import Made, decode
from .nursery import Nursery
from .ward import Ending, Ward

__all__ = ["Branching", "Offshoot", "Sent"]


class Sent(Seed):
    """A state as the process wrote it; nobody here reads it.

    Attributes:
        state: What it said.
        made: What is known of the environment.
    """

    __slots__ = ("made", "state")

    def __init__(self, state: bytes, made: Made):
        self.state = state
        self.made = made


class Offshoot(Seed):
    """A process that goes on from where it was forked.

    Attributes:
        ward: The process.
        made: What is known of the environment.
    """

    __slots__ = ("made", "ward")

    def __init__(self, ward: Ward, made: Made):
        self.ward = ward
        self.made = made

    def discard(self) -> None:
        self.ward.owner = None
        self.ward.end("", 0.0)


class Branching:
    """A process of a session on its way to two; owner of the new one until that has said that it is there.

    Args:
        nursery: Where processes are.
        parent: The one that forks.
        made: What is known of its environment.
        done: Hears once of the `Offshoot`, or why there is none.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(self, nursery: Nursery, parent: Ward, made: Made, done: Done):
        self._nursery = nursery
        self._parent = parent
        self._made = made
        self._done: Done | None = done
        self._told = self._there = False
        self._ward, self._descriptors = nursery.expect(self)

    def ready(self, result: Any, error: BaseException | None) -> bool:
        """The parent is about to fork, or will not. Whether there is more to be heard of it."""
        if error is None:
            try:
                self._parent.pass_on(self._descriptors)
            except OSError as trouble:
                # It waits for them, and would do so forever.
                self._parent.end(f"it could not be given what a fork of it needs: {trouble}", 0.0)
        else:
            self._fail(error)
        self._let_go()
        return error is None

    def forked(self, pid: Any, error: BaseException | None) -> None:
        """The parent has forked, or could not."""
        self._let_go()
        if error is None and type(pid) is int:
            self._nursery.adopt(self._ward, pid)
            self._told = True
            self._conclude()
        else:
            self._fail(error or NotForkable("the environment's process does not keep to what was agreed"))

    # What the new process says.

    def heard(self, frame: bytes | bytearray) -> None:
        try:
            result, error = decode(frame)
            if result != 0 or error is not None:
                raise ValueError("it did not say that it is there")
        except ValueError as fault:
            self._ward.end(str(fault), 0.0)
            return
        self._there = True
        self._conclude()

    def ended(self, ending: Ending) -> None:
        said = f": {ending.reason}" if ending.reason else ""
        self._finish(None, NotForkable(f"the fork of the environment's process has ended at once{said}"))

    def _conclude(self) -> None:
        if self._told and self._there and self._done is not None:
            self._finish(Offshoot(self._ward, self._made), None)

    def _fail(self, error: BaseException) -> None:
        self._ward.owner = None
        self._ward.end("", 0.0)
        self._finish(None, error)

    def _finish(self, result: Offshoot | None, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result, error if isinstance(error, OpenEnvError) or error is None else NotForkable(str(error)))

    def _let_go(self) -> None:
        """The descriptors are the new process's now."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)
