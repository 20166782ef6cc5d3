"""Calls that block, several at one time, on threads that keep no process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["outcome", "outcomes"]

T = TypeVar("T")


def outcomes(calls: Sequence[Callable[[], T]], at_once: int) -> list[T | Exception]:
    """Makes calls, each on a thread, and waits for them.

    Args:
        calls: The calls.
        at_once: Most at one time.

    Returns:
        What came of each, in their order: what it returned, or what it raised.

    Raises:
        KeyboardInterrupt: This thread was interrupted. Nobody waits for calls that run, and no further one begins.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()
    stopped = threading.Event()
    for number in range(len(calls)):
        waiting.put(number)

    def work() -> None:
        while not stopped.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, calls[number]()))
            except Exception as error:  # noqa: BLE001 - for whoever waits
                done.put((number, error))

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, name="openenv-hub", daemon=True).start()
    try:
        return [outcome for _, outcome in sorted((done.get() for _ in calls), key=lambda pair: pair[0])]
    finally:
        stopped.set()


def outcome(call: Callable[[], T]) -> T:
    """Makes one call so, and returns or raises what came of it."""
    (came,) = outcomes([call], 1)
    if isinstance(came, Exception):
        raise came
    return came
