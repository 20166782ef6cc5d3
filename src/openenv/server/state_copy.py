"""States that go from one session of protocol v2 to another: the request for a copy, and the call that uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import OpenEnvError, SessionLost, UsageError
from ..protocol.sequence import NumberedCall
from ..runtime.executor import Snapshot

if TYPE_CHECKING:
    from .v2_session import V2Session


class StateCopyRequest:
    """A copy of a session's state, when its turn comes among the calls of that session.

    Args:
        taken: Called once: with the copy, to be used up or discarded, or with why there is none.
    """

    __slots__ = ("_taken",)

    def __init__(self, taken: Callable[[Snapshot | None, OpenEnvError | None], None]):
        self._taken: Callable[[Snapshot | None, OpenEnvError | None], None] | None = taken

    def give(self, seed: Snapshot | None, error: OpenEnvError | None) -> None:
        """There is a copy, or there will be none. What comes after the first word is dropped."""
        taken, self._taken = self._taken, None
        if taken is not None:
            taken(seed, error)
        elif seed is not None:
            seed.discard()


class StateRestore:
    """A running call of a session, which goes on from the state of another one when that can be had.

    Args:
        v2_session: The session.
        call: Its call.
        source: The session whose state it is to have.
    """

    __slots__ = ("_call", "_source", "_v2_session")

    def __init__(self, v2_session: V2Session, call: NumberedCall, source: V2Session):
        self._v2_session = v2_session
        self._call = call
        self._source = source

    def begin(self) -> None:
        """Asks the source for a copy of its state."""
        self._v2_session.awaits = self._source
        self._source.copy_state(StateCopyRequest(self._taken))

    def _taken(self, seed: Snapshot | None, error: OpenEnvError | None) -> None:
        v2_session = self._v2_session
        if v2_session.running is not self._call:  # it was given up
            if seed is not None:
                seed.discard()
            return
        v2_session.awaits = None
        if seed is None:
            assert error is not None
            # As what it is, it would be taken for the end of this session.
            there = f"session {self._source.session.id!r} has no state to go on from: {error.message}"
            v2_session.fail(self._call, UsageError(there) if isinstance(error, SessionLost) else error)
        else:
            v2_session.session.load(seed, self._source.session, self._restored)

    def _restored(self, _: Any, error: BaseException | None) -> None:
        if error is None:
            self._v2_session.conclude(self._call, {})
        else:
            assert isinstance(error, OpenEnvError)  # a session translates all others
            self._v2_session.fail(self._call, error)
