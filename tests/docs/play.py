"""Plays the blocks of a page in turn: `python -P play.py BLOCKS.json`, in the folder where they are to run.

All Python of a page is one program, all shell one session; Python follows where the shell goes. It ends with the
first block that fails, or that does not print what it promises.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import linecache
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import IO, Any

START_S = 30.0


class Printed:
    """Everything that goes to standard output from now on, in a file."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - open to the end of the process
        os.dup2(self._file.fileno(), 1)
        self._told = 0

    def more(self) -> str:
        """What came since it was asked last."""
        sys.stdout.flush()
        text = os.pread(self._file.fileno(), 1 << 20, self._told)
        self._told += len(text)
        return text.decode(errors="replace")


class Program:
    """Python, block after block in one module."""

    def __init__(self) -> None:
        self._module = types.ModuleType("__main__")
        self._runner = asyncio.Runner()
        sys.modules["__main__"] = self._module

    def run(self, place: str, source: str) -> None:
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        code = compile(source, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:  # a part of a coroutine, as a notebook would run it
            self._runner.run(self._await(code))
        else:
            exec(code, vars(self._module))

    async def _await(self, code: types.CodeType) -> None:
        await eval(code, vars(self._module))

    def close(self) -> None:
        self._runner.close()


class Shell:
    """One bash for all blocks of a page."""

    def __init__(self, blocks: Path) -> None:
        self._blocks = blocks
        self._told, told = os.pipe()
        self._process = subprocess.Popen(["bash", "-eu"], stdin=subprocess.PIPE, pass_fds=(told,))
        self._done = f"echo >&{told}\n"
        os.close(told)

    @property
    def folder(self) -> str:
        """Where `cd` has led to."""
        return str(Path(f"/proc/{self._process.pid}/cwd").readlink())

    def run(self, place: str, source: str) -> None:
        script = self._blocks / place.replace("/", "_")
        script.write_text(source)
        assert self._process.stdin is not None
        self._process.stdin.write(f". {script} </dev/null\n{self._done}".encode())
        self._process.stdin.flush()
        while not select.select([self._told], [], [], 0.1)[0]:
            if self._process.poll() is not None:
                break
        if not select.select([self._told], [], [], 0)[0] or not os.read(self._told, 1):
            raise SystemExit(f"{place}: exit code {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Server:
    """A block that goes on while those after it run."""

    def __init__(self, place: str, source: str, folder: str):
        self._process = subprocess.Popen(
            ["bash", "-euc", source], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stderr is not None
        guard = threading.Timer(START_S, self.end)
        guard.start()
        announced = self._is_announced(self._process.stderr)
        guard.cancel()
        if not announced:
            raise SystemExit(f"{place}: no address was announced, exit code {self._process.wait()}")
        threading.Thread(target=sys.stderr.writelines, args=(self._process.stderr,), daemon=True).start()

    def _is_announced(self, lines: IO[str]) -> bool:
        for line in lines:
            sys.stderr.write(line)
            if re.search(r"https?://", line):
                return True
        return False

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(START_S)


class Play:
    """A page's program, shell and server."""

    def __init__(self, blocks: Path):
        self._printed = Printed()
        self._program, self._shell = Program(), Shell(blocks)
        self._server: Server | None = None

    def block(self, block: dict[str, Any]) -> None:
        place, source = block["place"], block["source"]
        if block["title"]:
            path = Path(self._shell.folder, block["title"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        elif block["background"]:
            self._end_server()
            self._server = Server(place, source, self._shell.folder)
        elif block["language"] == "sh":
            self._shell.run(place, source)
        else:
            os.chdir(self._shell.folder)
            self._program.run(place, source)
        self._check(place, block["promises"])

    def _check(self, place: str, promises: list[str]) -> None:
        said = printed = self._printed.more()
        for promise in promises:
            _, found, said = said.partition(promise)
            if not found:
                raise SystemExit(f"{place} promises {promise!r} and prints:\n{printed}")

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.end()

    def close(self) -> None:
        self._end_server()
        self._shell.close()
        self._program.close()


def main() -> None:
    given = Path(sys.argv[1])
    sys.argv, sys.path[:0] = ["page"], [""]
    play = Play(given.parent)
    try:
        for block in json.loads(given.read_text()):
            play.block(block)
    finally:
        play.close()


if __name__ == "__main__":
    main()
