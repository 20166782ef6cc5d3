"""`openenv serve --reload`: a server that restarts when a file of its environment changes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..errors import OpenEnvError, UsageError
from ..project import target as targets
from ..settings import ServerSettings
from .main import report_error
from .serve import facts_of

LOOK_S = 0.25
# Seconds for a server to end before it is killed.
END_S = 6.0
_SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".html", ".json")
_NEVER = {"__pycache__", "node_modules", "site-packages", "build", "dist", "out"}

Snapshot = dict[Path, tuple[int, int]]
"""Time of change and size of each file."""
Ready = Callable[[dict[str, Any]], None]


@dataclass
class Reloader:
    """Runs a server in a separate process, on a listener that stays open, so that the port stays the same.

    Attributes:
        listener: The listening socket of the server.
        settings: Exported settings: the process reads them.
        ready: Called with the facts of the first server that is ready, as `facts_of` returns them.
        say: Prints a line on stderr.
    """

    listener: socket.socket
    settings: ServerSettings
    ready: Ready | None
    say: Callable[[str], None]

    def run(self) -> None:
        """Runs until SIGTERM. Raises `KeyboardInterrupt` after Ctrl-C."""

        def end(number: int, frame: object) -> None:
            raise _Terminated

        self._folders = watched(str(self.settings.target))
        context = multiprocessing.get_context("spawn")
        before = signal.signal(signal.SIGTERM, end)
        try:
            seen = _snapshot(self._folders)
            while True:
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_serve, args=(self.listener, self.settings, there))
                # Ctrl-C is for this process: it would interrupt the other one in the middle of its imports.
                interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
                try:
                    process.start()
                finally:
                    signal.signal(signal.SIGINT, interrupt)
                there.close()
                try:
                    seen = self._until_changed(process, here, seen)
                finally:
                    if process.is_alive():
                        process.terminate()
                    process.join(END_S)
                    if process.is_alive():
                        process.kill()
                        process.join()
                    here.close()
        except _Terminated:
            return
        finally:
            signal.signal(signal.SIGTERM, before)

    def _until_changed(self, process: BaseProcess, pipe: Any, seen: Snapshot) -> Snapshot:
        """Waits until a file has changed, and reports state changes of the server meanwhile."""
        lives = True
        while True:
            if not lives:
                time.sleep(LOOK_S)
            else:
                try:
                    if pipe.poll(LOOK_S):
                        serves = pipe.recv()
                        if self.ready is None:
                            self.say("serving again")
                        else:
                            self.ready(serves)
                            self.ready = None
                except EOFError:
                    process.join()
                if not process.is_alive():
                    where = ", ".join(map(str, self._folders))
                    self.say(f"no server (exit code {process.exitcode}): waiting for a change in {where}")
                    lives = False
            now = change(self._folders, seen)
            if now is not None:
                paths = sorted(path for path in seen.keys() | now.keys() if seen.get(path) != now.get(path))
                more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
                self.say(f"{os.path.relpath(paths[0])}{more} changed: starting anew")
                return now


def watched(target: str) -> list[Path]:
    """The folders with the files of a target.

    Raises:
        UsageError: It has none.
    """
    if target in targets.bundled():
        return [Path(targets.__file__).parent.parent / "envs" / target]
    if targets.is_project(target):
        return [Path(target).resolve()]
    module, colon, _ = target.partition(":")
    if colon and module not in ("gymnasium", "pettingzoo"):
        targets.search(Path.cwd())
        try:
            spec = importlib.util.find_spec(module.partition(".")[0])
        except (ImportError, ValueError):
            spec = None
        if spec is not None:
            places = list(spec.submodule_search_locations or []) or [str(Path(spec.origin or "").parent)]
            return [Path(place).resolve() for place in places]
    raise UsageError(f"--reload watches the files of a project or a module, and {target!r} is neither")


def change(
    folders: Iterable[Path], seen: Snapshot, pause: Callable[[], None] = lambda: time.sleep(LOOK_S)
) -> Snapshot | None:
    """Checks whether files have changed, and if so waits until they stop changing for a moment.

    Args:
        folders: Their folders.
        seen: The last snapshot.
        pause: Waits for that moment.

    Returns:
        The new snapshot; None if nothing changed, also after a temporary file, such as an editor's.
    """
    folders, now = list(folders), _snapshot(folders)
    if now == seen:
        return None
    while True:
        pause()
        again = _snapshot(folders)
        if again == now:
            return None if now == seen else now
        now = again


def _snapshot(folders: Iterable[Path]) -> Snapshot:
    found: Snapshot = {}
    for place, below, names in (entry for folder in folders for entry in os.walk(folder)):
        below[:] = [
            name
            for name in below
            if name not in _NEVER and not name.startswith(".") and not Path(place, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            if name.endswith(_SUFFIXES) and not name.startswith("."):
                path = Path(place, name)
                with suppress(OSError):  # gone again, or a link to nothing
                    stat = path.stat()
                    found[path] = (stat.st_mtime_ns, stat.st_size)
    return found


class _Terminated(BaseException):
    """SIGTERM."""


def _serve(listener: socket.socket, settings: ServerSettings, pipe: Connection) -> None:
    """The main function of the process."""
    from ..telemetry import logs
    from .serve import load_app, run_here

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True, name="openenv-parent").start()
    logs.configure_logging(settings.log_format, settings.log_level)
    # If a file changes twice within a second, bytecode of the first version may be taken for the second's.
    sys.dont_write_bytecode = True
    try:
        app = load_app(str(settings.target), settings)
    except OpenEnvError as error:
        report_error(error)
        sys.exit(1)
    serves = facts_of(app, str(settings.target))
    # Without a grace period, in which sessions would keep the old code.
    hurried = settings.model_copy(update={"grace_s": 0.0})
    try:
        run_here(app, hurried, listener, lambda: pipe.send(serves))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
