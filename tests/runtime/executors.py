"""Executors for tests: the only place that knows what their constructors take."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor as Pool
from typing import Any

from openenv.runtime.executor import Executor
from openenv.runtime.loop import InlineExecutor, LoopExecutor
from openenv.runtime.thread import Mailbox, ThreadExecutor

__all__ = ["executor_of", "loop_executor", "thread_executor"]


def loop_executor(helpers: Pool, environment: Any = None) -> LoopExecutor:
    return LoopExecutor(Mailbox(asyncio.get_running_loop()), lambda: helpers, environment)


def thread_executor(name: str = "test-session") -> ThreadExecutor:
    return ThreadExecutor(Mailbox(asyncio.get_running_loop()), name)


def executor_of(kind: str, helpers: Pool) -> Executor:
    """One of the running loop: `inline`, `loop` or `thread`."""
    if kind == "inline":
        return InlineExecutor()
    return loop_executor(helpers) if kind == "loop" else thread_executor()
