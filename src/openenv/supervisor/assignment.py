"""Which worker gets the next connection: a pure rule over loads."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["choose"]


def choose(loads: Sequence[int], after: int) -> int:
    """The place with the least load.

    Args:
        loads: Sessions and connections on their way to one, by place; at least one place.
        after: The place that was chosen last. Among equals the next one after it comes first, so that connections
            which weigh nothing yet are spread as well.
    """
    count = len(loads)
    return min(range(count), key=lambda place: (loads[place], (place - after - 1) % count))
