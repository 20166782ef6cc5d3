"""Run the tools of one environment on threads that belong to it, so that every tool has a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from .._exceptions import keep_running

logger = logging.getLogger("openenv.mcp")

Outcome = tuple[Any, BaseException | None]
# The executors that called the current code. Each is busy with it, so a nested call (by a tool that steps its own
# environment) runs on another executor.
_callers: ContextVar[tuple[object, ...]] = ContextVar("openenv_workbenches", default=())
ToolThread = TypeVar("ToolThread", bound="_WorkerThread | _LoopThread")
# Threads that one environment may leave to tools that do not return.
MOST_LEFT = 8
# Seconds that an event loop has, beyond a tool's own time, to show that it still runs.
LOOP_S = 0.25


class ToolDeadlineExceeded(Exception):
    """A tool did not return in time."""


class ToolExecutor:
    """The threads of one environment. Its methods may be called from any thread, with or without an event loop.

    Raises `RuntimeError` while `MOST_LEFT` threads are held by jobs that did not return.
    """

    __slots__ = ("__weakref__", "_left", "_making", "_name", "_nested", "_threads")

    def __init__(self) -> None:
        self._threads: dict[type[Any], Any] = {}  # one of each kind
        self._nested: ToolExecutor | None = None
        self._making = threading.Lock()
        self._left: list[_WorkerThread | _LoopThread] = []
        # Identifies it in contexts that may outlive it.
        self._name = object()

    def run(self, work: Callable[[], Any], timeout_s: float) -> Any:
        """Does a job on the thread, and waits for it.

        Raises:
            ToolDeadlineExceeded: It did not end in time.
            BaseException: The exception of the job.
        """
        if self._name in _callers.get():
            return self._inner().run(work, timeout_s)
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        worker = self._thread(_WorkerThread)
        job = worker.give(work, outcomes.put, self._context())
        try:
            outcome = outcomes.get(timeout=timeout_s)
        except Empty:
            self._give_up(worker, job)
            raise ToolDeadlineExceeded from None
        return _result_of(outcome)

    async def run_async(self, work: Callable[[], Any], timeout_s: float) -> Any:
        """`run` for an async caller."""
        if self._name in _callers.get():
            return await self._inner().run_async(work, timeout_s)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def answer(outcome: Outcome) -> None:
            with contextlib.suppress(RuntimeError):  # the loop of the caller was closed
                loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(outcome))

        worker = self._thread(_WorkerThread)
        job = worker.give(work, answer, self._context())
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            if not future.done():
                self._give_up(worker, job)
        if not future.done():
            raise ToolDeadlineExceeded
        return _result_of(future.result())

    def run_coroutine(self, make: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> Any:
        """Runs a coroutine on the event loop, and waits for it. Raises as `run` does."""
        if self._name in _callers.get():
            return self._inner().run_coroutine(make, timeout_s)
        loop = self._thread(_LoopThread)
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        task = loop.give(make, outcomes.put, self._context())
        try:
            outcome = outcomes.get(timeout=timeout_s)
        except Empty:
            if not loop.withdraw(task):
                logger.warning("an asynchronous tool blocks its event loop: the next tools get a new one")
                self._leave(loop)
            raise ToolDeadlineExceeded from None
        return _result_of(outcome)

    def close(self) -> None:
        """Ends the threads; a busy one ends after its job. Later calls make new ones."""
        with self._making:
            threads, nested = self._threads, self._nested
            self._threads, self._nested = {}, None
        for thread in threads.values():
            thread.end()
        if nested is not None:
            nested.close()

    def _thread(self, kind: type[ToolThread]) -> ToolThread:
        """The thread of a kind, made when it is first needed."""
        with self._making:
            thread: ToolThread | None = self._threads.get(kind)
            if thread is None:
                self._left = [each for each in self._left if each.is_alive()]
                if len(self._left) >= MOST_LEFT:
                    held = f"{MOST_LEFT} tools of this environment did not return, and each holds a thread"
                    raise RuntimeError(f"{held}: open another session, and set time limits inside the tools")
                thread = self._threads[kind] = kind()
                weakref.finalize(self, thread.end).atexit = False
            return thread

    def _context(self) -> Context:
        """The context of the caller, for its jobs here."""
        context = copy_context()
        context.run(_callers.set, (*_callers.get(), self._name))
        return context

    def _inner(self) -> ToolExecutor:
        with self._making:
            self._nested = self._nested or ToolExecutor()
            return self._nested

    def _give_up(self, worker: _WorkerThread, job: _ToolJob) -> None:
        """No caller waits for a job any more; the thread is left to it."""
        job.wanted = False
        self._leave(worker)

    def _leave(self, thread: _WorkerThread | _LoopThread) -> None:
        """Leaves a thread to the tool that holds it; the next tools get another one."""
        with self._making:
            if self._threads.get(type(thread)) is thread:
                del self._threads[type(thread)]
                self._left.append(thread)
        thread.end()


def _result_of(outcome: Outcome) -> Any:
    result, error = outcome
    if error is not None:
        raise error
    return result


@dataclass(slots=True, eq=False)
class _ToolJob:
    work: Callable[[], Any]
    answer: Callable[[Outcome], None]
    context: Context
    wanted: bool = True


class _WorkerThread(threading.Thread):
    """A thread that does one job after the other. It does not hold the executor, and ends with it."""

    def __init__(self) -> None:
        # A daemon: a tool that never returns must not keep the process from ending.
        super().__init__(name="openenv-tools", daemon=True)
        self._inbox: SimpleQueue[_ToolJob | None] = SimpleQueue()
        self.start()

    def give(self, work: Callable[[], Any], answer: Callable[[Outcome], None], context: Context) -> _ToolJob:
        job = _ToolJob(work, answer, context)
        self._inbox.put(job)
        return job

    def end(self) -> None:
        self._inbox.put(None)

    def run(self) -> None:
        while (job := self._inbox.get()) is not None:
            if job.wanted:
                try:
                    outcome: Outcome = job.context.run(job.work), None
                except BaseException as error:  # noqa: BLE001 - foreign code: SystemExit of a tool is a failure of it
                    outcome = None, error
                job.answer(outcome)
                del outcome
            del job  # nothing of a job may outlive it while the thread waits


class _LoopThread(threading.Thread):
    """A thread with an event loop that runs until `end`."""

    def __init__(self) -> None:
        super().__init__(name="openenv-tools-loop", daemon=True)
        self._ended = False
        self._loop = asyncio.new_event_loop()
        self.start()

    def give(
        self, make: Callable[[], Coroutine[Any, Any, Any]], answer: Callable[[Outcome], None], context: Context
    ) -> list[asyncio.Task[None]]:
        started: list[asyncio.Task[None]] = []

        async def attempt() -> None:
            try:
                answer((await make(), None))
            except BaseException as error:  # noqa: BLE001 - the edge to foreign code
                answer((None, error))

        def start() -> None:
            started.append(self._loop.create_task(attempt(), context=context))

        self._loop.call_soon_threadsafe(start)
        return started

    def withdraw(self, started: list[asyncio.Task[None]]) -> bool:
        """Cancels the coroutine of `give`. False: the loop does not run."""
        turned = threading.Event()

        def stop() -> None:
            for task in started:
                task.cancel()
            turned.set()

        self._loop.call_soon_threadsafe(stop)
        return turned.wait(LOOP_S)

    def end(self) -> None:
        # Once: a second `stop` would interrupt the loop's final cleanup.
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._loop.stop)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop()
            asyncio.set_event_loop(self._loop)
            keep_running(self._loop.run_forever)  # the runner then cancels what is left there, and closes it
