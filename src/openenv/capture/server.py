"""The proxy on a socket: in a thread of this process (`CaptureServer`), or as a program with workers (`run`)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from .._files import lock_folder
from .._processes import can_fork, fork
from ..errors import InvalidArgument, UsageError
from .export import export_session, to_trace_entries, to_training_trace, training_segments
from .http import HttpConnection, asgi_app
from .service import CaptureOptions, CaptureService, worker_socket
from .sessions import CaptureSession, SessionOpened, SessionStore
from .training import TraceEntry, TrainingTrace

T = TypeVar("T")
_BACKLOG = 4096
# A call leaves no cycles, and what is recorded lives long: with Python's thresholds, collections walk it in vain.
_GC_THRESHOLDS = (50_000, 20, 100)


class CaptureServer:
    """A proxy in this process, on a thread of its own::

        with CaptureServer(llm_url="http://localhost:8000/v1", model="policy") as proxy:
            session = proxy.open()
            run_agent(base_url=f"{proxy.url}/v1", api_key=session)
            document = proxy.export(session)

    Args:
        port: Its port; 0 takes a free one.
        host: Its address. Every other than loopback lets agents on other machines in.
        options: Those of `CaptureOptions`.

    Raises:
        InvalidArgument: An option has an invalid value.
        JournalInUse: Another proxy records into the folder.

    Attributes:
        service: Answers the requests.
        app: The same as an ASGI app, to mount in another one.
        admin_key: Key of the routes under `/sessions`.
        url: Its address, once it has started.
    """

    def __init__(self, *, port: int = 0, host: str = "127.0.0.1", **options: Any):
        self.service = CaptureService(CaptureOptions(**options))
        self.app = asgi_app(self.service.handle)
        self.admin_key = self.service.admin_key
        self.host, self.port = host, port
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Event | None = None

    @property
    def registry(self) -> SessionStore:
        """The sessions."""
        return self.service.store

    def start(self, timeout_s: float = 30.0) -> Self:
        """Begins to serve.

        Raises:
            RuntimeError: The port is taken; or it has not begun in time.
        """
        listener = listening(self.host, self.port)
        self.port = listener.getsockname()[1]
        self.url = f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        begun = threading.Event()

        def work() -> None:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                self._loop = runner.get_loop()
                self._ended = asyncio.Event()
                runner.run(serve(self.service, [listener], self._ended, begun.set))

        self._thread = threading.Thread(target=work, name="openenv-capture", daemon=True)
        self._thread.start()
        if not begun.wait(timeout_s):
            raise RuntimeError(f"the proxy has not started within {timeout_s:g} s")
        return self

    def stop(self) -> None:
        """Waits for calls in flight, and ends."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def open(self, session_id: str = "", *, key: str | None = None, **facts: Any) -> str:
        """Opens a session and returns its id, which is the API key of its agent unless `key` is given.

        Args:
            session_id: Its id; empty for a random one.
            key: Its key. The id then follows from the key, which no file has.
            facts: Those of `SessionOpened`.
        """
        facts.setdefault("capture_level", self.service.options.capture_level)

        async def create() -> str:
            return self.service.store.create(SessionOpened(session_id, **facts), key).session_id

        return self._run(create())

    def export(self, session_id: str, **options: bool) -> dict[str, Any]:
        """The document of a session; see `export_session`. Raises `UsageError` if there is no such session."""
        return self.read(session_id, lambda session: export_session(session, **options))

    def trace_entries(self, session_id: str) -> list[TraceEntry]:
        """See `to_trace_entries`."""
        return self.read(session_id, lambda session: to_trace_entries(session.graph, export_session(session)))

    def training_trace(self, session_id: str) -> TrainingTrace:
        """See `to_training_trace`. Raises its errors, and `UsageError` if there is no such session."""
        return self.read(session_id, lambda session: to_training_trace(session.graph, export_session(session)))

    def segments(self, session_id: str) -> list[Any]:
        """See `training_segments`."""
        return self.read(session_id, training_segments)

    def read(self, session_id: str, read: Callable[[CaptureSession], T]) -> T:
        """Calls a function on a session, while no call changes it. Raises `UsageError` if there is none."""

        async def call() -> T:
            session = self.service.store.get(session_id)
            if session is None:
                raise UsageError(f"there is no session {session_id!r:.80}: open one first")
            return read(session)

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None or self._loop is None:
            with asyncio.Runner() as runner:
                return runner.run(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class CaptureMiddleware:
    """ASGI middleware that serves a proxy under a path of another app, without a check of its keys.

    Args:
        app: The other app. When it ends, calls in flight may end first.
        service: Answers the requests.
        path: Where the proxy is.
    """

    passes_websockets = True

    def __init__(self, app: Any, service: CaptureService, path: str = "/capture"):
        self.app = app
        self._service, self._path = service, path
        self._capture = asgi_app(service.handle)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receive_last() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._service.close()
            return message

        root = scope.get("root_path", "")
        path = scope.get("path", "").removeprefix(root)
        if scope["type"] == "http" and (path == self._path or path.startswith(f"{self._path}/")):
            await self._capture({**scope, "root_path": root + self._path}, receive, send)
        else:
            await self.app(scope, receive_last if scope["type"] == "lifespan" else receive, send)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def listening(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `RuntimeError` if the address is taken, or none of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise RuntimeError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0") from error


async def serve(
    service: CaptureService, listeners: list[socket.socket], ended: asyncio.Event, begun: Callable[[], None]
) -> None:
    """Serves until the event is set.

    Args:
        service: Answers the requests.
        listeners: The sockets of clients.
        ended: Ends it.
        begun: Called when it takes connections.
    """
    loop = asyncio.get_running_loop()
    connections: set[HttpConnection] = set()
    servers = [
        await loop.create_server(lambda: HttpConnection(service.handle, connections), sock=listener, backlog=_BACKLOG)
        for listener in listeners
    ]
    options = service.options
    if options.workers > 1:
        path = worker_socket(Path(options.folder or ""), options.worker)
        path.unlink(missing_ok=True)
        inner = lambda: HttpConnection(service.handle_here, connections)  # noqa: E731
        servers.append(await loop.create_unix_server(inner, str(path), backlog=_BACKLOG))
    begun()
    await ended.wait()
    for server in servers:
        server.close()
    await service.close()
    for connection in list(connections):
        connection.close()
    await asyncio.sleep(0)


def run(options: CaptureOptions, host: str, port: int, ready: Callable[[str], None]) -> int:
    """Serves in this process until SIGINT or SIGTERM; with several workers, in as many children.

    Args:
        options: How the proxy works.
        host, port: Its address; port 0 takes a free one.
        ready: Called with the URL when it takes connections.

    Returns:
        The exit code.

    Raises:
        InvalidArgument: There are no processes to fork here.
        UsageError: An option is invalid; or another proxy records into the folder.
    """
    listener = listening(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    if options.workers == 1:
        service = CaptureService(options)
        _serve_until_signal(service, listener, lambda: ready(url))
        return 0
    return _run_workers(options, listener, lambda: ready(url))


def _run_workers(options: CaptureOptions, listener: socket.socket, begun: Callable[[], None]) -> int:
    """Serves in children, and starts another one in place of each that dies."""
    if not can_fork() or options.folder is None:
        raise InvalidArgument("several workers need a folder that they share, and a system with fork: give --folder")
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    if (lock := lock_folder(Path(options.folder))) is None:
        raise UsageError(f"another proxy records into {options.folder}: end that one, or choose another folder")
    children: dict[int, int] = {}
    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            os.kill(child, signal.SIGTERM)

    def begin(worker: int) -> None:
        child = fork()
        if child:
            children[child] = worker
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _serve_until_signal(CaptureService(replace(options, worker=worker)), listener, lambda: None)
        finally:
            os._exit(0)

    for worker in range(options.workers):
        begin(worker)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    begun()
    while children:
        child, _ = os.waitpid(-1, 0)
        worker = children.pop(child)
        if not stopping:
            begin(worker)
    os.close(lock)
    return 0


def _serve_until_signal(service: CaptureService, listener: socket.socket, begun: Callable[[], None]) -> None:
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        loop, ended = runner.get_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        if service.options.workers == 1:
            loop.add_signal_handler(signal.SIGINT, ended.set)
        runner.run(serve(service, [listener], ended, begun))
