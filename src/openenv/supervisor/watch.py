"""Whether a worker is silent: a pure rule over what it showed and when."""

from __future__ import annotations

__all__ = ["Watch"]


class Watch:
    """Watches a number that a worker changes while its event loop turns.

    Args:
        silence_s: Seconds without a change after which it is silent.
        now: Seconds on any clock that only goes on.
    """

    def __init__(self, silence_s: float, now: float):
        self._silence_s = silence_s
        self._beat: int | None = None
        self._changed = self._looked = now

    def silent(self, beat: int, now: float) -> bool:
        """Looks at the number once more."""
        # If the watcher itself was away (stopped, starved), the silence is not the worker's.
        away = now - self._looked > self._silence_s / 2
        if beat != self._beat or away:
            self._beat, self._changed = beat, now
        self._looked = now
        return now - self._changed > self._silence_s
