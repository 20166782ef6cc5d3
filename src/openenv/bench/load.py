"""Load processes: their number, start, synchronization and results."""

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

# Share of open files for sessions; the rest is for imports, pipes, and sockets that are closing.
USABLE = 0.9
# Sessions per process, as long as there is a core for each process.
SESSIONS_EACH = 1024
# Maximum of processes without `--processes`.
MOST_PROCESSES = 16


def enough_processes(sessions: int, limit: int) -> int:
    """A good number of load processes for a number of sessions. `check_share` checks whether they can hold them.

    Args:
        sessions: Number of concurrent sessions of all processes together.
        limit: Maximum of open files per process.
    """
    wanted = min(os.cpu_count() or 1, -(-sessions // SESSIONS_EACH))
    return min(MOST_PROCESSES, max(1, wanted, _needed(sessions, limit)))


def check_share(sessions: int, processes: int, limit: int) -> None:
    """Checks that the load processes can hold their sessions.

    Args:
        sessions: Number of concurrent sessions of all processes together.
        processes: Number of load processes.
        limit: Maximum of open files per process.

    Raises:
        UsageError: There are too few processes. The message has the number that suffices.
    """
    if sessions < 1 or processes < 1:
        raise UsageError(f"{sessions} sessions and {processes} processes: there must be at least one of each")
    needed = _needed(sessions, limit)
    if processes < needed:
        raise UsageError(
            f"{sessions} sessions are too many for {processes} load process{'es' if processes > 1 else ''}: each may "
            f"have {limit} open files, enough for {_usable(limit)} sessions; use --processes {needed}"
        )


def _usable(limit: int) -> int:
    return max(1, int(limit * USABLE))


def _needed(sessions: int, limit: int) -> int:
    return -(-sessions // _usable(limit))


ShareT = TypeVar("ShareT")
ResultT = TypeVar("ResultT")

# Seconds between two reads of the counts.
POLL_S = 0.1
# Seconds for a process to end after SIGTERM.
JOIN_S = 5.0

_READY, _RESULT, _ERROR = "ready", "result", "error"


class LoadCounts(NamedTuple):
    """Progress of a load. Each count only grows.

    Attributes:
        connected: Sessions that got a connection.
        reset: Resets that were answered.
        steps: Steps that were answered.
        closed: Connections of `connected` that ended.
        failed: Requests that ended with an error.
        finished: Requests that ended, with or without an error.
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
    """A load process's link to the other load processes.

    Args:
        connection: Connection to the process that started the load.
        board: Shared memory of all counts.
        index: Index of this load process.
    """

    def __init__(self, connection: Connection[Any, Any], board: MutableSequence[int], index: int):
        self._connection = connection
        self._board = board
        self._places = {
            name: index * len(LoadCounts._fields) + place for place, name in enumerate(LoadCounts._fields)
        }

    def meet(self) -> None:
        """Waits until every load process calls this. Blocks the event loop, if there is one."""
        self._connection.send((_READY, None))
        self._connection.recv()

    def count(self, name: str) -> None:
        """Increments a count, by its name in `LoadCounts`."""
        self._board[self._places[name]] += 1


def run_load(
    work: Callable[[LoadProcess, ShareT], ResultT],
    shares: Sequence[ShareT],
    *,
    at_meeting: Callable[[int], None] = lambda number: None,
    progress: Callable[[LoadCounts], None] = lambda counts: None,
) -> list[ResultT]:
    """Runs one process per share and waits for all of them.

    Args:
        work: A module-level function, called in each process. Arguments and results are pickled.
        shares: Argument of each process.
        at_meeting: Called with 0, 1, ... each time all processes wait in `LoadProcess.meet`, before they continue.
        progress: Called about ten times a second.

    Returns:
        The results of `work`, in the order of the shares.

    Raises:
        OpenEnvError: The first one that a process raised.
        LaunchFailed: A process ended without a result. Its traceback, if any, is on stderr.
    """
    context = multiprocessing.get_context("spawn")
    board = context.RawArray("q", len(shares) * len(LoadCounts._fields))
    processes: list[Any] = []
    connections: list[Any] = []
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
    """Runs a coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def without_gc() -> None:
    """Disables garbage collection, in a process that ends with its load.

    A collection visits every object of thousands of sessions, and its pause would be measured as the server's
    latency.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def split_evenly(amount: int, hands: int) -> list[range]:
    """Divides the numbers from 0 to `amount` evenly into at most `hands` ranges, none of them empty."""
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
    # Ctrl-C reaches the whole process group: ignore it, since the process that started the load ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome: tuple[str, Any] = (_RESULT, work(LoadProcess(connection, board, index), share))
    except OpenEnvError as error:
        outcome = (_ERROR, error)
    connection.send(outcome)


def _collect(
    connections: Sequence[Connection[Any, Any]], at_meeting: Callable[[int], None], look: Callable[[], None]
) -> list[Any]:
    """Synchronizes the processes, and collects their results."""
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
                raise LaunchFailed("a load process ended without a result; see stderr for the reason") from None
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
