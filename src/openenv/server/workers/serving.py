"""A uvicorn server that drains: its sessions end before it stops. For a process that only serves."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
from types import FrameType

import uvicorn

from ..._exceptions import keep_running
from ..._sockets import watching_loop
from ...errors import SessionLost
from ...runtime.session import SessionState
from ..server import EnvironmentServer
from .pipe import END_S, RUNNING_S

# Thresholds of the young, middle and old generation. Sessions are many long-lived objects, which Python's defaults
# (700, 10, 10) traverse repeatedly while thousands open. Opening 8,000 sessions took 110 us of CPU each with the
# defaults, 73 with these (least of three runs; reference counting frees the objects of a step in either case).
GC_THRESHOLDS = (10_000, 50, 20)


def tune_process() -> None:
    """Excludes all loaded objects from garbage collection, and makes collections less frequent.

    Call it once, when the app is made, and never from a library: it affects the whole process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


logger = logging.getLogger("openenv.supervisor")

_BUSY = (SessionState.STARTING, SessionState.EXECUTING)
# Exit code of a process that had to exit while a call of an environment hung.
FORCED = 1
_OVER = "the server was stopped, and the time for its sessions to end (grace_s) has passed"


class DrainingServer(uvicorn.Server):
    """Serves an app. SIGTERM and Ctrl-C drain its sessions first, and a second signal ends the process at once.

    Args:
        config: The configuration of the app, which is loaded.
        grace_s: Seconds that sessions have after SIGTERM. After Ctrl-C, only running calls have time to finish.

    Attributes:
        environment: The environment server behind the app; None for an app that is not ours.
    """

    def __init__(self, config: uvicorn.Config, grace_s: float):
        super().__init__(config)
        self._grace_s = grace_s
        self._signal: int | None = None
        self._drained_at: float | None = None
        self._running_s = RUNNING_S
        self._reachable = False
        self._finishing = False
        found = getattr(getattr(config.app, "state", None), "openenv", None)
        self.environment: EnvironmentServer | None = found if isinstance(found, EnvironmentServer) else None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self._signal == signal.SIGINT

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal ends it; an environment that raises `KeyboardInterrupt` does not."""
        with asyncio.Runner(loop_factory=watching_loop(self.config.get_loop_factory())) as runner:
            loop = runner.get_loop()
            serving = loop.create_task(self.serve(sockets))
            keep_running(lambda: loop.run_until_complete(serving))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(128 + sig)
        self._signal = sig

    async def on_tick(self, counter: int) -> bool:
        if self._signal is not None and self._drained_at is None:
            self.drain(0.0 if self.interrupted else self._grace_s)
        return await super().on_tick(counter) or self._over()

    def drain(self, grace_s: float, running_s: float = RUNNING_S, reachable: bool = False) -> None:
        """Begins to drain: accepts no further connections and sessions. A second call can only shorten the time.

        Args:
            grace_s: Seconds that sessions have to end on their own. A session that waits for its client to come back
                counts only if the client can do so.
            running_s: Seconds that calls still running after that have to finish.
            reachable: Whether clients can still come back to their sessions.
        """
        self._reachable = reachable
        self._running_s = min(self._running_s, running_s)
        if self._drained_at is not None:
            self._grace_s = min(self._grace_s, time.monotonic() - self._drained_at + grace_s)
            return
        for listener in self.servers:
            listener.close()
        self._drained_at = time.monotonic()
        self._grace_s = grace_s
        deadline = threading.Timer(grace_s + running_s + END_S, _end_by_force)
        deadline.daemon = True
        deadline.start()
        if self.environment is not None:
            self.environment.drain(grace_s)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.environment is not None:
            for session in self.environment.manager.sessions:
                session.end(SessionLost(_OVER))
        await super().shutdown(sockets)

    def _over(self) -> bool:
        """Whether it has drained: no session is left, or the time has passed."""
        if self._drained_at is None:
            return False
        if self.environment is None:
            return True
        sessions = self.environment.manager.sessions
        left_s = self._drained_at + self._grace_s - time.monotonic()
        if left_s > 0:
            return not any(self._reachable or not session.detached for session in sessions)
        # Idle sessions end now, and the others after their running call.
        for session in sessions:
            if session.state is not SessionState.STARTING and not (self._finishing and session.state in _BUSY):
                session.finish(SessionLost(_OVER))
        self._finishing = True
        return -left_s >= self._running_s or not any(session.state in _BUSY for session in sessions)


def _end_by_force() -> None:
    logger.warning("a call of an environment does not return: the process exits without waiting for it")
    os._exit(FORCED)
