"""What every sandbox does, as tests: subclasses say how one is made."""

from __future__ import annotations

import asyncio
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.agents import Sandbox, SandboxLimits
from openenv.errors import InvalidArgument, UsageError

SLEEP = "echo begun; sleep 600 & sleep 600"


class SandboxContract:
    """Tests of the contract."""

    def sandbox(self, folder: Path | None = None, **options: Any) -> Sandbox:
        """A sandbox, not yet started."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "task"
        (folder / "deep").mkdir(parents=True)
        (folder / "a.txt").write_text("first\n")
        (folder / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (folder / "deep" / "run.sh").chmod(0o755)
        return folder

    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[int]:
        """The port of a web server on this machine."""
        handler = functools.partial(_Quiet, directory=str(tmp_path))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield server.server_address[1]
            server.shutdown()
            thread.join()

    async def test_commands_see_a_copy_of_the_folder(self, folder: Path) -> None:
        async with self.sandbox(folder, variables={"COLOUR": "blue"}) as sandbox:
            seen = await sandbox.run("pwd; cat a.txt; ./deep/run.sh; echo $COLOUR; echo no >&2; exit 3", timeout_s=60)
            assert (seen.exit_code, seen.stderr, seen.timed_out) == (3, "no\n", False)
            assert seen.stdout == "/workspace\nfirst\nran\nblue\n"
            words = ["sh", "-c", "echo $COLOUR > /workspace/a.txt"]
            changed = await sandbox.run(words, timeout_s=60, env={"COLOUR": "red"})
            assert changed.exit_code == 0, changed
            assert (await sandbox.run("cat a.txt", timeout_s=60)).stdout == "red\n"
        assert (folder / "a.txt").read_text() == "first\n"

    async def test_files_go_in_and_out(self, folder: Path, tmp_path: Path) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.put(folder, "/workspace/copy")
            await sandbox.put({"x/y.txt": "text", "z": b"\0", "a": folder / "a.txt"}, "/made/here")
            listed = await sandbox.run("find /workspace /made -type f | sort; ln -s /etc/passwd copy/l", timeout_s=60)
            names = ["/made/here/a", "/made/here/x/y.txt", "/made/here/z"]
            assert listed.stdout.split() == [*names, "/workspace/copy/a.txt", "/workspace/copy/deep/run.sh"]
            assert await sandbox.get("/workspace", tmp_path / "out")
            assert await sandbox.get("/made/here/z", tmp_path / "out")
            assert not await sandbox.get("/nowhere", tmp_path / "out")
            with pytest.raises(InvalidArgument, match=r"'\.\./b' must be relative"):
                await sandbox.put({"../b": ""}, "/made")
        found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
        assert found == {"z", "copy", "copy/a.txt", "copy/deep", "copy/deep/run.sh"}
        assert (tmp_path / "out" / "copy" / "deep" / "run.sh").stat().st_mode & 0o100

    async def test_a_file_that_is_too_large_is_not_copied(self, tmp_path: Path) -> None:
        async with self.sandbox(limits=SandboxLimits(file_mb=1)) as sandbox:
            await sandbox.run("for i in 1 2 3; do head -c 900000 /dev/zero > $i; done", timeout_s=60)
            with pytest.raises(UsageError, match="limits.file_mb"):
                await sandbox.get("/workspace", tmp_path / "out")

    async def test_output_is_bounded(self) -> None:
        async with self.sandbox(limits=SandboxLimits(output_bytes=1000)) as sandbox:
            printed = await sandbox.run(
                "echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo last ", timeout_s=60
            )
        assert printed.truncated
        assert len(printed.stdout) < 1100
        assert printed.stdout.startswith("first\nxx")
        assert printed.stdout.endswith("xx" + "last\n")
        assert "bytes left out]" in printed.stdout

    async def test_a_command_over_its_time_ends_with_all_it_started(self) -> None:
        async with self.sandbox() as sandbox:
            ended = await sandbox.run(SLEEP, timeout_s=1)
            assert (ended.timed_out, ended.exit_code, ended.stdout) == (True, 137, "begun\n")
            assert (await sandbox.run(RUNNING, timeout_s=60)).stdout == ""

    async def test_a_cancelled_command_ends_with_all_it_started(self) -> None:
        begun = asyncio.Event()

        def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun.set()
            writer.close()

        async with await asyncio.start_server(note, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with self.sandbox(allow=[f"127.0.0.1:{port}"]) as sandbox:
                connect = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
                command = f'/usr/bin/python3 -c "{connect}"; {SLEEP}'
                running = asyncio.create_task(sandbox.run(command, timeout_s=600))
                await begun.wait()
                running.cancel()
                await asyncio.wait([running])
                assert running.cancelled()
                assert (await sandbox.run(RUNNING, timeout_s=60)).stdout == ""

    async def test_a_program_that_is_missing_has_an_exit_code(self) -> None:
        async with self.sandbox() as sandbox:
            missing = await sandbox.run(["no-such-program"], timeout_s=60)
            assert missing.exit_code in (126, 127)
            assert "no-such-program" in missing.stderr + missing.stdout

    async def test_nothing_is_reached_but_what_is_allowed(self, served: int) -> None:
        allowed = [f"127.0.0.1:{served}"]
        async with self.sandbox(allow=allowed) as sandbox, self.sandbox() as closed:
            for _ in range(2):
                assert (await sandbox.run(fetch(served), timeout_s=60)).stdout == "200\n"
            for place in (sandbox, closed):
                assert "Network is unreachable" in (await place.run(fetch(served, "192.0.2.1"), timeout_s=60)).stderr
            assert "Connection refused" in (await closed.run(fetch(served), timeout_s=60)).stderr

    async def test_a_host_has_its_own_name(self, served: int) -> None:
        async with self.sandbox(allow=[f"localhost:{served}"]) as sandbox:
            assert (await sandbox.run(fetch(served, "localhost"), timeout_s=60)).stdout == "200\n"

    async def test_a_snapshot_is_another_place(self, folder: Path) -> None:
        async with self.sandbox(folder) as sandbox:
            await sandbox.run("echo second > a.txt; mkdir /made; echo more > /made/more", timeout_s=60)
            snapshot = await sandbox.snapshot()
            await sandbox.run("echo third > a.txt", timeout_s=60)
        try:
            async with sandbox.from_snapshot(snapshot) as other:
                assert (await other.run("cat a.txt /made/more", timeout_s=60)).stdout == "second\nmore\n"
                assert (await other.run("echo fourth > a.txt", timeout_s=60)).exit_code == 0
            async with sandbox.from_snapshot(snapshot) as other:
                assert (await other.run("cat a.txt", timeout_s=60)).stdout == "second\n"
        finally:
            await sandbox.remove_snapshot(snapshot)

    async def test_it_runs_between_start_and_close(self) -> None:
        sandbox = self.sandbox()
        with pytest.raises(UsageError, match=r"start\(\) it first"):
            await sandbox.run("true", timeout_s=60)
        async with sandbox:
            with pytest.raises(UsageError, match="runs already"):
                await sandbox.start()
        await sandbox.close()
        with pytest.raises(UsageError, match=r"start\(\) it first"):
            await sandbox.run("true", timeout_s=60)

    async def test_mistakes_are_named(self, tmp_path: Path) -> None:
        for options, words in (
            ({"folder": tmp_path / "nowhere"}, "is no folder"),
            ({"workdir": "here"}, "workdir must be an absolute path"),
            ({"mounts": [tmp_path / "nowhere"]}, "mounts: .* does not exist"),
            ({"allow": ["here"]}, "'here' must be HOST:PORT"),
            ({"allow": ["192.0.2.1:80"]}, "give the name of its host"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                self.sandbox(**options)
        async with self.sandbox() as sandbox:
            with pytest.raises(InvalidArgument, match="command is empty"):
                await sandbox.run("", timeout_s=60)
            with pytest.raises(InvalidArgument, match="no environment variable"):
                await sandbox.run("true", timeout_s=60, env={"A=B": "c"})


RUNNING = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -a '^sleep'; done"


def fetch(port: int, host: str = "127.0.0.1") -> list[str]:
    """The command that prints the status of a request."""
    code = f"import urllib.request as r; print(r.urlopen('http://{host}:{port}/', timeout=20).status)"
    return ["/usr/bin/python3", "-c", code]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass
