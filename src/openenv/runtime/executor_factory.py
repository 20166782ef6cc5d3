"""Makes the executors of sessions, and keeps what they share."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from .._tuning import use_batch_scheduling
from .executor import Executor, Snapshot
from .loop import InlineExecutor, LoopExecutor
from .process import ProcessExecutor, ProcessPool
from .profile import EnvironmentProfile, Execution
from .session import Session
from .thread import Mailbox, ThreadExecutor

HELPER_THREADS = 16


class ExecutorFactory:
    """Makes an executor for each session. They share the loop's mailbox, helper threads and a pool of processes.

    Args:
        pool: Gives each session a process of its own; None: environments run in this process.

    Attributes:
        pool: The same.
    """

    def __init__(self, pool: ProcessPool | None):
        self.pool = pool
        self._mailbox: Mailbox | None = None
        self._helpers: ThreadPoolExecutor | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Another event loop drives the executors from here on."""
        if self.pool is not None:
            self.pool.abandon()
        if self._mailbox is None:
            self._mailbox = Mailbox(loop)
        else:
            self._mailbox.move(loop)

    def make(self, execution: Execution, session: Session, snapshot: Snapshot | None) -> Executor:
        """The executor of a new session. Raises `RuntimeError` if the machine has no thread left to give."""
        if self.pool is not None:
            return ProcessExecutor(self.pool, snapshot)
        if execution is Execution.INLINE:
            return InlineExecutor()
        if execution is Execution.LOOP:
            self._helper_threads()
            return LoopExecutor(self._mail(), self._helper_threads)
        return ThreadExecutor(self._mail(), f"openenv-{session.id[:8]}")

    def adopt(self, profile: EnvironmentProfile, thread: ThreadExecutor) -> Executor:
        """The executor for an environment that a thread has made, and that belongs elsewhere. Raises as `make`."""
        if profile.execution is Execution.INLINE:
            return InlineExecutor(thread.release())
        self._helper_threads()
        return LoopExecutor(self._mail(), self._helper_threads, thread.release())

    def abandon(self, executor: Executor | None) -> None:
        """A call does not return. If it occupies one of a few helpers, the next environments get others."""
        if isinstance(executor, LoopExecutor) and executor.uses_helper:
            self.rest()

    def rest(self) -> None:
        """Without sessions, no helper thread is left."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=False)
            self._helpers = None

    def _mail(self) -> Mailbox:
        assert self._mailbox is not None  # made by `bind`, before anything is opened
        return self._mailbox

    def _helper_threads(self) -> ThreadPoolExecutor:
        if self._helpers is None:
            helpers = ThreadPoolExecutor(HELPER_THREADS, "openenv-helper", initializer=use_batch_scheduling)
            helpers.submit(int)  # so that one thread is there, whatever the machine has to give later
            self._helpers = helpers
        return self._helpers
