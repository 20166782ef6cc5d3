"""Environments that do everything they should not, when they are told to, and what watches them."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from openenv.environment import Environment
from openenv.runtime.process import ProcessExecutor, ProcessPool
from openenv.settings import ServerSettings
from openenv.types import Action, EnvironmentMetadata, Observation, State

__all__ = [
    "AsyncClosing",
    "AsyncWild",
    "Closing",
    "Failing",
    "LoopClosing",
    "Patient",
    "Talkative",
    "Wild",
    "alive",
    "descendants",
    "gone",
    "group_of",
    "local_factory",
    "make_wild",
    "names",
    "patient_of",
    "pool_of",
    "until",
]

# Starting an interpreter on a busy machine.
PATIENCE_S = 15.0


class Wild(Environment[Action, Observation, State]):
    """Does what the action's metadata name."""

    execution = "process"

    def __init__(self, name: str = "wild") -> None:
        super().__init__()
        self.name = name
        self.steps = 0

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        self.steps = 0
        return Observation(metadata={"pid": os.getpid(), "name": self.name, "seed": seed, **kwargs})

    def step(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        self.steps += 1
        arguments = dict(action.metadata)
        done = getattr(self, arguments.pop("do", "nothing"))(**arguments)
        return Observation(reward=float(self.steps), metadata={"done": done})

    @property
    def state(self) -> State:
        return State(step_count=self.steps)

    def nothing(self) -> None:
        pass

    def segfault(self) -> None:
        ctypes.string_at(0)

    def leave(self, code: int, words: str = "") -> None:
        os.write(2, words.encode())
        os._exit(code)

    def fail(self) -> None:
        raise LookupError("there is no such door")

    def hang(self) -> None:
        while True:
            time.sleep(60)

    def spin(self) -> None:
        while True:
            pass

    def resist(self, there: str = "") -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if there:
            Path(there).touch()
        self.hang()

    def tidy(self, path: str, there: str) -> None:
        def tidied(*_: Any) -> None:
            Path(path).write_text("tidy")
            os._exit(0)

        signal.signal(signal.SIGTERM, tidied)
        Path(there).touch()
        self.hang()

    def multiply(self, times: int) -> None:
        """A bomb that ends by itself: so many processes, a minute long."""
        for _ in range(times):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        self.hang()

    def escape(self, deep: bool = False) -> int:
        """Leaves a process in a session of its own; a deep one loses its parent, too."""
        leave = "os.fork() and os._exit(0); os.setsid(); " if deep else ""
        words = f"import os, time; {leave}print(os.getpid(), flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, start_new_session=True)
        return int(process.stdout.readline())

    def allocate(self) -> None:
        hoard = []
        while True:
            hoard.append(bytearray(4 * 1024 * 1024))

    def chatter(self, stream: int, megabytes: int) -> None:
        for _ in range(megabytes):
            left = memoryview(b"x" * (1024 * 1024 - 1) + b"\n")
            while left:
                left = left[os.write(stream, left) :]

    def write_file(self) -> int:
        with tempfile.TemporaryFile() as file:
            try:
                while True:
                    file.write(b"x" * 1024 * 1024)
                    file.flush()
            except OSError as error:
                return error.errno

    def say(self, size: int) -> str:
        return "x" * size

    def shout(self, size: int) -> None:
        """Writes on its own channel to the server."""
        channels = [name for name in names("/proc/self/fd") if _is_channel(int(name))]
        channel = socket.socket(fileno=int(channels[0]))
        channel.sendall(size.to_bytes(4, "little") + b"\xc1" * min(size, 1000))
        self.hang()

    def hang_up(self) -> None:
        """Closes the channel and goes on."""
        for name in names("/proc/self/fd"):
            if _is_channel(int(name)):
                os.close(int(name))
        self.hang()

    def numbers(self) -> dict[str, Any]:
        import numpy

        return {"array": numpy.arange(6, dtype="f4").reshape(2, 3), "bytes": b"\0\xff", "scalar": numpy.float32(1.5)}

    def unwritable(self) -> object:
        return object()

    def look(self, path: str) -> list[str]:
        return names(path)

    def write(self, path: str) -> str:
        try:
            Path(path).write_text("mine")
        except OSError as error:
            return type(error).__name__ + str(error.errno)
        return "written"

    def connect(self, host: str, port: int) -> str:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            return type(error).__name__
        return "connected"

    def temporary(self) -> str:
        return tempfile.gettempdir()

    def privileges(self) -> list[int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return [int(line.split()[1], 16) for line in lines if line.startswith(("CapEff", "CapPrm", "CapBnd"))][:2]

    def keyring(self) -> list[int]:
        libc = ctypes.CDLL(None, use_errno=True)
        add_key, request_key, keyctl = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[os.uname().machine]
        calls = (
            (add_key, b"user", b"openenv", b"x", 1, -4),
            (request_key, b"user", b"openenv", None, 0),
            (keyctl, 0, -4, 1),
        )
        return [ctypes.get_errno() if libc.syscall(*call) < 0 else 0 for call in calls]

    def asynchronous_io(self) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        setup, destroy = {"x86_64": (206, 207), "aarch64": (0, 1)}[os.uname().machine]
        context = ctypes.c_ulong(0)
        if libc.syscall(setup, 8, ctypes.byref(context)) < 0:
            return ctypes.get_errno()
        libc.syscall(destroy, context)
        return 0

    def limits(self) -> dict[str, int]:
        import resource

        return {name: resource.getrlimit(getattr(resource, name))[0] for name in ("RLIMIT_NOFILE", "RLIMIT_FSIZE")}

    def descriptors(self) -> int:
        # A newer libffi opens its own file, for the trampolines of callbacks.
        return sum("libffi" not in file for _, file in descriptors())

    def variables(self) -> list[str]:
        return sorted(os.environ)

    def descriptors_of_what_it_starts(self) -> int:
        words = "import os; print(len(os.listdir('/proc/self/fd')) - 1)"
        started = subprocess.run([sys.executable, "-c", words], stdout=subprocess.PIPE, check=True, close_fds=False)
        return int(started.stdout)

    def start_threads(self, count: int) -> None:
        for _ in range(count):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        self.hang()


class AsyncWild(Wild):
    """The same on an event loop, with a clock that runs between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0
        self.clock: asyncio.Task | None = None

    async def reset_async(self, seed=None, episode_id=None, **kwargs: Any) -> Observation:
        self.clock = asyncio.create_task(self.tick())
        return self.reset(seed, episode_id, **kwargs)

    async def step_async(self, action, timeout_s=None, **kwargs: Any) -> Observation:
        await asyncio.sleep(0)
        if action.metadata.get("do") == "ticks":
            return Observation(metadata={"done": self.ticks})
        return self.step(action, timeout_s, **kwargs)

    async def tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)


class Closing(Wild):
    """Says in a file that it was closed, and does more if it is told to."""

    def __init__(self, path: str, then: str = "nothing") -> None:
        super().__init__()
        self.path = path
        self.then = then

    def close(self) -> None:
        Path(self.path).write_text("closed")
        getattr(self, self.then)()


class AsyncClosing(Closing):
    """The same, asynchronously."""

    async def close(self) -> None:
        await asyncio.sleep(0)
        super().close()


class LoopClosing(AsyncWild):
    """The same on an event loop."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.then = path, "nothing"

    async def close(self) -> None:
        await asyncio.sleep(0)
        Closing.close(self)


class Talkative(Wild):
    """Tells more of itself than its class does."""

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="Talkative", description=f"in process {os.getpid()}", version="3")


class Failing(Wild):
    """Cannot be made: raises, ends, or is killed."""

    def __init__(self, how: str = "raise") -> None:
        if how == "raise":
            raise ValueError("no licence")
        os.write(2, b"the constructor gives up\n")
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)


class Unborn(Wild):
    """Its constructor never returns."""

    def __init__(self) -> None:
        while True:
            signal.pause()


def local_factory() -> Callable[[], Wild]:
    """A function that no other process finds."""

    def make() -> Wild:
        return Wild()

    return make


def make_wild() -> Wild:
    return Wild("made by a function")


class Patient:
    """An executor whose calls can be awaited."""

    def __init__(self, pool: ProcessPool):
        self.executor = ProcessExecutor(pool)
        self.profile: Any = None

    async def start(self) -> BaseException | None:
        self.profile, error = await self._await(lambda done: self.executor.start(Wild, done))
        return error

    async def reset(self, **arguments: Any) -> Any:
        return await self._await(lambda done: self.executor.submit(self.profile.reset, arguments, done))

    async def step(self, **metadata: Any) -> Any:
        return await self._await(self.begin(**metadata))

    def begin(self, **metadata: Any) -> Callable[[Any], None]:
        action = Action(metadata=metadata)
        return lambda done: self.executor.submit(self.profile.step, action, done)

    async def do(self, **metadata: Any) -> Any:
        """What a step did. Raises what it raised."""
        result, error = await self.step(**metadata)
        if error is not None:
            raise error
        return result["metadata"]["done"]

    async def pid(self) -> int:
        """The process; resets the environment."""
        result, error = await self.reset()
        if error is not None:
            raise error
        return result["metadata"]["pid"]

    async def state(self) -> Any:
        return await self._await(lambda done: self.executor.submit(self.profile.state, None, done))

    async def call(self, operation: Any, argument: Any) -> Any:
        return await self._await(lambda done: self.executor.submit(operation, argument, done))

    async def close(self) -> Any:
        return await self._await(self.executor.close)

    async def _await(self, call: Callable[[Any], None]) -> Any:
        future = asyncio.get_running_loop().create_future()
        call(lambda result, error: future.set_result((result, error)))
        return await asyncio.wait_for(future, PATIENCE_S)


@asynccontextmanager
async def pool_of(factory: Any = Wild, *arguments: Any, **settings: Any) -> AsyncIterator[ProcessPool]:
    """A pool that has no pool unless it is asked for; nothing of it may be left in the end."""
    before = descriptors()
    made = functools.partial(factory, *arguments) if arguments else factory
    pool = ProcessPool(made, ServerSettings(**{"process_pool": 0, **settings}))
    try:
        yield pool
    finally:
        left = [] if pool.pid is None else descendants(pool.pid)
        await pool.aclose()
        if "sandbox" in settings:  # bwrap itself is there for a moment longer
            await gone(*left)
    assert not [pid for pid in left if alive(pid)]
    assert not descriptors() - before


@asynccontextmanager
async def patient_of(factory: Any = Wild, *arguments: Any, **settings: Any) -> AsyncIterator[Patient]:
    """One session's executor, started."""
    async with pool_of(factory, *arguments, **settings) as pool:
        patient = Patient(pool)
        error = await patient.start()
        assert error is None, error
        yield patient
        await patient.close()


def alive(pid: int) -> bool:
    """Whether a process is there, and not only its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """A process and all that it started, as far as they still belong to it."""
    parents = _stat(1)
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def group_of(leader: int) -> list[int]:
    """The processes of a group."""
    return [pid for pid, group in _stat(2).items() if group == leader]


def _stat(field: int) -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[field])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


async def gone(*pids: int) -> None:
    """Waits until processes have ended."""
    await until(lambda: not any(map(alive, pids)))


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop and other processes go on until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event of ours
            await asyncio.sleep(0.005)


def names(folder: str) -> list[str]:
    """What is in a folder."""
    return sorted(entry.name for entry in Path(folder).iterdir())


def descriptors() -> set[tuple[str, str]]:
    """What this process has open, by number and what is behind it. Garbage of other tests may close in between."""
    opened = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            opened.add((entry.name, str(entry.readlink())))
    return opened


def _is_channel(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.family == socket.AF_UNIX
    except OSError:
        return False
