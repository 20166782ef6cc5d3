"""Load processes: how many a load needs, and how they start, wait for each other and report."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Coroutine, MutableSequence, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

from ..errors import LaunchFailed, OpenEnvError, UsageError

# The rest is for modules being imported, pipes, and sockets still in their last handshake.
USABLE = 0.9
# So many sessions are worth starting another process for, as long as there is a core for it.
SESSIONS_EACH = 1024
# More than these are started only if `--processes` says so.
MOST_PROCESSES = 16


def enough_processes(sessions: int, limit: int) -> int:
    """How many processes of the load are right for so many sessions; `check_share` says whether they can hold them.

    Args:
        sessions: Open at one time, by all processes together.
        limit: Files that each process may have open.
    """
    wanted = min(os.cpu_count() or 1, -(-sessions // SESSIONS_EACH))
    return min(MOST_PROCESSES, max(1, wanted, _needed(sessions, limit)))


def check_share(sessions: int, processes: int, limit: int) -> None:
    """Whether the processes of the load can hold their sessions.

    Args:
        sessions: Open at one time, by all processes together.
        processes: Among which they are shared out.
        limit: Files that each process may have open.

    Raises:
        UsageError: They cannot; the message says how many processes can.
    """
    if sessions < 1 or processes < 1:
        raise UsageError(f"{sessions} sessions from {processes} processes: there must be at least one of each")
    needed = _needed(sessions, limit)
    if processes < needed:
        raise UsageError(
            f"{sessions} sessions are too many for {processes} process{'es' if processes > 1 else ''} of the load: "
            f"each may have {limit} files open, enough for {_usable(limit)} sessions; give --processes {needed}"
        )


def _usable(limit: int) -> int:
    return max(1, int(limit * USABLE))


def _needed(sessions: int, limit: int) -> int:
    return -(-sessions // _usable(limit))


ShareT = TypeVar("ShareT")
ResultT = TypeVar("ResultT")

# Seconds between two looks at the counts.
POLL_S = 0.1
# Seconds for a process to end after SIGTERM.
JOIN_S = 5.0

_READY, _RESULT, _ERROR = "ready", "result", "error"


class LoadCounts(NamedTuple):
    """How far the sessions of a load are; each count only grows.

    Attributes:
        connected: Sessions that got a connection.
        reset: Resets answered.
        steps: Steps answered.
        closed: Connections that ended, of those counted in `connected`.
        failed: Requests that ended with an error.
        finished: Requests that ended, well or not.
    """

    connected: int = 0
    reset: int = 0
    steps: int = 0
    closed: int = 0
    failed: int = 0
    finished: int = 0

    @property
    def open(self) -> int:
        """Sessions open now."""
        return self.connected - self.closed


class LoadProcess:
    """What a process of the load has of the others.

    Args:
        connection: Leads to the process that started the load.
        board: Shared memory of all counts.
        index: Which process of the load this is.
    """

    def __init__(self, connection: Connection[Any, Any], board: MutableSequence[int], index: int):
        self._connection = connection
        self._board = board
        self._places = {
            name: index * len(LoadCounts._fields) + place for place, name in enumerate(LoadCounts._fields)
        }

    def meet(self) -> None:
        """Waits until every process of the load has come this far. Blocks the event loop, if there is one."""
        self._connection.send((_READY, None))
        self._connection.recv()

    def count(self, name: str) -> None:
        """Adds one to a count, by its name in `LoadCounts`."""
        self._board[self._places[name]] += 1


def run_load(
    work: Callable[[LoadProcess, ShareT], ResultT],
    shares: Sequence[ShareT],
    *,
    at_meeting: Callable[[int], None] = lambda number: None,
    progress: Callable[[LoadCounts], None] = lambda counts: None,
) -> list[ResultT]:
    """Runs one process a share and waits for all of them.

    Args:
        work: A function of a module, called in each process; what it takes and returns is pickled.
        shares: What each process is given.
        at_meeting: Called with 0, 1, ... each time all processes wait in `LoadProcess.meet`, before they go on.
        progress: Called about ten times a second.

    Returns:
        What `work` returned, in the order of the shares.

    Raises:
        OpenEnvError: The first that a process raised.
        LaunchFailed: A process ended without a result; its traceback, if it had one, is on stderr.
    """
    context = multiprocessing.get_context("spawn")
    board = context.RawArray("q", len(shares) * len(LoadCounts._fields))
    processes: list[Any] = []
    connections: list[Connection[Any, Any]] = []
    try:
        for index, share in enumerate(shares):
            here, there = context.Pipe()
            connections.append(here)
            process = context.Process(target=_run_process, args=(work, share, there, board, index), daemon=True)
            process.start()
            there.close()
            processes.append(process)
        results = _collect(connections, at_meeting, lambda: progress(_total(board)))
        progress(_total(board))
        for process in processes:
            process.join(JOIN_S)
        return results
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join(JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for connection in connections:
            connection.close()


def run_loop(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Runs a coroutine on uvloop, where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def without_gc() -> None:
    """Turns garbage collection off, in a process that ends with its load.

    A collection walks over every object of thousands of sessions, and the pause would be counted as the server's
    latency.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def split_evenly(amount: int, hands: int) -> list[range]:
    """Shares the numbers from 0 to `amount` out, as evenly as can be; no hand is empty."""
    hands = min(amount, hands)
    bounds = [amount * hand // hands for hand in range(hands + 1)]
    return [range(begin, end) for begin, end in pairwise(bounds)]


def _run_process(
    work: Callable[[LoadProcess, Any], Any],
    share: Any,
    connection: Connection[Any, Any],
    board: MutableSequence[int],
    index: int,
) -> None:
    # Ctrl-C reaches the whole group; the process that started the load ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome: tuple[str, Any] = (_RESULT, work(LoadProcess(connection, board, index), share))
    except OpenEnvError as error:
        outcome = (_ERROR, error)
    connection.send(outcome)


def _collect(
    connections: Sequence[Connection[Any, Any]], at_meeting: Callable[[int], None], look: Callable[[], None]
) -> list[Any]:
    """Lets the processes meet, and collects their results."""
    working = {connection: index for index, connection in enumerate(connections)}
    ready: list[Connection[Any, Any]] = []
    results: dict[int, Any] = {}
    meetings = 0
    looked = time.monotonic()
    while working:
        for connection in wait(list(working), timeout=POLL_S):
            assert isinstance(connection, Connection)
            try:
                kind, value = connection.recv()
            except (EOFError, ConnectionResetError):
                raise LaunchFailed("a process of the load ended without a result; stderr may say why") from None
            if kind == _ERROR:
                raise value
            if kind == _READY:
                ready.append(connection)
            else:
                results[working.pop(connection)] = value
        if ready and len(ready) == len(working):
            at_meeting(meetings)
            meetings += 1
            for connection in ready:
                connection.send(None)
            ready.clear()
        if time.monotonic() - looked >= POLL_S:
            look()
            looked = time.monotonic()
    return [results[index] for index in range(len(connections))]


def _total(board: Sequence[int]) -> LoadCounts:
    width = len(LoadCounts._fields)
    return LoadCounts(*(sum(board[place::width]) for place in range(width)))
