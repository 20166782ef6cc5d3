"""Sessions in a sandbox: what they cannot reach, and that they end all the same."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest

from openenv.errors import EnvironmentCrashed, UsageError
from openenv.runtime.process import ProcessPool, sandbox
from openenv.settings import ServerSettings

from .wild import Patient, Wild, descendants, gone, names, patient_of, pool_of, until

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(scope="module", autouse=True)
def bwrap() -> None:
    """Machines on which bubblewrap may not work cannot show this; CI can."""
    try:
        sandbox.check("bwrap")
    except UsageError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


async def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with patient_of() as patient:
            assert await patient.do(do="connect", host="127.0.0.1", port=port) == "connected"
        async with patient_of(sandbox="bwrap") as patient:
            assert await patient.do(do="connect", host="127.0.0.1", port=port) != "connected"


async def test_the_root_is_read_only_and_so_is_what_the_kernel_shows(tmp_path):
    async with patient_of(sandbox="bwrap") as patient:
        for place in ("/etc/x", "/x", "/dev/x", "/run/x", "/proc/sys/kernel/core_pattern", "/sys/x"):
            assert await patient.do(do="write", path=place) != "written", place
        assert await patient.do(do="write", path=str(tmp_path / "x")) != "written"
        assert not (tmp_path / "x").exists()


async def test_each_session_has_a_tmp_of_its_own(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    async with pool_of(sandbox="bwrap") as pool:
        one, other = Patient(pool), Patient(pool)
        assert await one.start() is None
        assert await other.start() is None
        assert await one.do(do="temporary") == "/tmp"
        for place in ("/tmp", "/dev/shm"):
            assert await one.do(do="write", path=f"{place}/mine") == "written"
            assert "mine" in await one.do(do="look", path=place)
            assert "mine" not in await other.do(do="look", path=place)
            assert "mine" not in names(place)


async def test_other_processes_cannot_be_seen():
    async with patient_of(sandbox="bwrap") as patient:
        assert [name for name in await patient.do(do="look", path="/proc") if name.isdigit()] == ["1"]


async def test_no_privileges_are_left():
    async with patient_of(sandbox="bwrap") as patient:
        assert await patient.do(do="privileges") == [0, 0]


async def test_the_keyrings_of_the_kernel_cannot_be_reached():
    async with patient_of(sandbox="bwrap") as patient:
        assert await patient.do(do="keyring") == [errno.EPERM] * 3


async def test_the_asynchronous_requests_of_the_machine_cannot_be_taken():
    """One process could take all of them (fs.aio-max-nr), and no other program would get any."""
    async with patient_of(sandbox="bwrap") as patient:
        assert await patient.do(do="asynchronous_io") == errno.EPERM


async def test_what_leaves_its_group_ends_with_its_session():
    async with pool_of(sandbox="bwrap") as pool:
        patient = Patient(pool)
        assert await patient.start() is None
        await patient.do(do="escape")
        await patient.do(do="escape", deep=True)
        await until(lambda: len(escaped_from(pool.pid)) == 2)
        outside = escaped_from(pool.pid)
        await patient.close()
        await gone(*outside)


def escaped_from(pid: int) -> list[int]:
    """Those descendants that `escape` has left behind, by their command lines."""
    found = []
    for each in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"os.getpid()" in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
    return found


async def test_a_hanging_call_is_stopped_and_a_crash_is_told():
    async with patient_of(sandbox="bwrap") as patient:
        call = asyncio.ensure_future(patient.step(do="hang"))
        await asyncio.sleep(0)
        patient.executor.cancel()
        await call
        assert (await patient.reset())[1] is None
        _, error = await patient.step(do="segfault")
        assert error.signal == "SIGSEGV"
        assert (await patient.reset())[1] is None
        _, error = await patient.step(do="leave", code=5, words="bye")
        assert (error.exit_code, error.stderr) == (5, "bye")


async def test_a_fork_bomb_is_ended_as_a_whole():
    async with patient_of(sandbox="bwrap", process_children=30) as patient:
        _, error = await patient.step(do="multiply", times=400)
        assert type(error) is EnvironmentCrashed
        assert "process_children" in error.message


async def test_files_in_tmp_end_where_the_limit_is():
    async with patient_of(sandbox="bwrap", process_output_mb=2) as patient:
        assert await patient.do(do="write_file") in {27, 28}  # EFBIG, ENOSPC


def test_without_the_program_it_is_said_what_to_install(monkeypatch):
    sandbox.check.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="install bubblewrap"):
        ProcessPool(Wild, ServerSettings(sandbox="bwrap"))


def test_where_it_is_not_permitted_that_is_said(tmp_path, monkeypatch):
    sandbox.check.cache_clear()
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match="not permitted here .*No permissions.*user namespaces"):
        ProcessPool(Wild, ServerSettings(sandbox="bwrap"))
