"""The state of a session, asked for by another one that is to go on from it."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import OpenEnvError
from ..execution import Seed
from ..sessions import Session

__all__ = ["Loan"]


class Loan:
    """A copy of a session's state, when its turn comes among the calls of that session.

    Args:
        source: Whose state.
        taken: Hears of it once: the copy, to be used up or discarded, or why there is none.
    """

    __slots__ = ("_taken", "source")

    def __init__(self, source: Session, taken: Callable[[Seed | None, OpenEnvError | None], None]):
        self.source = source
        self._taken: Callable[[Seed | None, OpenEnvError | None], None] | None = taken

    def give(self, seed: Seed | None, error: OpenEnvError | None) -> None:
        """There is a copy, or there will be none. What comes after the first word is dropped."""
        taken, self._taken = self._taken, None
        if taken is not None:
            taken(seed, error)
        elif seed is not None:
            seed.discard()
