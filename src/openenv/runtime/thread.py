"""Synchronous environments: one thread per session, and the mailbox that brings results back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import CoroutineType
from typing import Any

from .._processes import SWITCH_INTERVAL, use_batch_scheduling
from .executor import Done, Operation, attempt, close, construct, has_close


class Mailbox:
    """Carries results from threads to one event loop, with one wake-up for all waiting results.

    Args:
        loop: Gets the results.

    Attributes:
        switch_interval: Counts the calls on threads. Executors report each call that begins, and the mailbox each one
            that has returned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.switch_interval = SWITCH_INTERVAL
        self._loop = loop
        self._letters: deque[tuple[Done, Any, BaseException | None]] = deque()
        self._ringing = False

    def post(self, done: Done, result: Any, error: BaseException | None) -> None:
        """Has `done` called on the loop. Thread-safe."""
        self._letters.append((done, result, error))
        if not self._ringing:
            self._ring()

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Delivers to another loop from now on, including results that the old, closed loop did not receive."""
        self._loop = loop
        if self._letters:
            self._ring()

    def _ring(self) -> None:
        self._ringing = True
        # A closed loop gets no call: posted results wait for `move`.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Lowered first: a result posted from now on is either seen below or wakes the loop again.
        self._ringing = False
        letters, taken = self._letters, 0
        try:
            while letters:
                done, result, error = letters.popleft()
                taken += 1
                done(result, error)
        finally:
            self.switch_interval.count(-taken)
            if letters:  # a callback raised: call the others nevertheless
                self._ring()


# Stack size. It takes address space, not memory: only used pages are resident (about 16 KiB for an idle thread).
# Small enough for 16,384 threads, large enough for numpy, regular expressions and C parsers.
STACK_BYTES = 512 * 1024


class ThreadExecutor:
    """Runs an environment on a dedicated thread: the constructor, every call and `close`.

    Args:
        mailbox: Brings results back to the event loop.
        name: Name of the thread.
    """

    stoppable = False
    __slots__ = ("_environment", "_inbox", "_mailbox", "_runner", "_started", "_thread")

    def __init__(self, mailbox: Mailbox, name: str):
        self._mailbox = mailbox
        self._environment: Any = None
        self._runner: asyncio.Runner | None = None
        self._started = False
        self._inbox: SimpleQueue[tuple[Operation, Any, Done] | None] = SimpleQueue()
        # A daemon: an environment that never returns must not keep the process from ending.
        self._thread = _Thread(target=self._run, name=name, daemon=True)

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine has no thread left to give
            done(None, error)
            return
        finally:
            threading.stack_size(before)
        self._started = True
        self.submit(self._construct, factory, done)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        self._mailbox.switch_interval.count(1)
        self._inbox.put((operation, argument, done))

    def cancel(self) -> None:
        """Does nothing: a thread cannot be stopped from outside."""

    def close(self, done: Done) -> None:
        if self._started and (self._runner is not None or has_close(self._environment)):
            self.submit(self._close, None, done)
            self._inbox.put(None)
        else:
            self._inbox.put(None)
            done(None, None)

    def release(self) -> Any:
        """Ends the thread without closing the environment, and returns it."""
        environment, self._environment = self._environment, None
        self._inbox.put(None)
        return environment

    def _run(self) -> None:
        use_batch_scheduling()
        post, take = self._mailbox.post, self._inbox.get
        while (call := take()) is not None:
            operation, argument, done = call
            result, error = attempt(operation, self._environment, argument)
            if type(result) is CoroutineType:
                result, error = attempt(self._await, result, None)
            post(done, result, error)
            # No object of this call may stay alive while the thread waits for the next one.
            del call, operation, argument, done, result, error
        self._environment = None  # its finalizer runs on this thread, too

    def _construct(self, _: None, factory: Callable[[], Any]) -> Any:
        self._environment = construct(None, factory)
        return self._environment

    def _close(self, environment: Any, _: None) -> None:
        self._environment = None
        try:
            ending = close(environment, None)
            if ending is not None:
                self._await(ending, None)
        finally:
            if self._runner is not None:
                self._runner.close()

    def _await(self, call: Any, _: None) -> Any:
        # For an environment with both synchronous and asynchronous methods: all run on its one thread.
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(call)


class _Thread(threading.Thread):
    """A thread whose `start` does not wait until the thread runs.

    The event loop starts it while holding the interpreter lock, which the new thread needs to report that it runs.
    That wait would cost two thread switches for each start. With 8,192 concurrent sessions, each on its thread,
    half of them were done after 5.4 s instead of 9.2 s (2 workers on 2 cores, alternating runs).
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self._started = _Unawaited()


class _Unawaited(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return True
