"""The sandbox of this machine's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openenv.agents import ProcessSandbox, Sandbox, SandboxLimits
from openenv.errors import LaunchFailed, ProviderFailed, UsageError
from tests.agents.contract import SandboxContract

pytestmark = [pytest.mark.real, pytest.mark.slow]
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="apt-get install bubblewrap")


@needs_bwrap
class TestContract(SandboxContract):
    def sandbox(self, folder: Path | None = None, **options: Any) -> Sandbox:
        return ProcessSandbox(folder, **options)


@needs_bwrap
async def test_nothing_of_this_machine_can_be_changed_or_read() -> None:
    async with ProcessSandbox() as sandbox:
        for command in (
            "touch /usr/x",
            "touch /etc/ssl/x",
            "touch /dev/x",
            f"ls {Path(__file__).parent}",
            "cat /etc/shadow",
        ):
            assert (await sandbox.run(command, timeout_s=60)).exit_code, command
        seen = await sandbox.run("grep CapEff /proc/self/status; id -u; ls /proc | grep -c '^[0-9]'", timeout_s=60)
        capabilities, user, processes = seen.stdout.split()[1:]
        assert (int(capabilities, 16), user != "0", int(processes) < 10) == (0, True, True)


@needs_bwrap
async def test_no_process_outlives_its_command() -> None:
    async with ProcessSandbox(limits=SandboxLimits(processes=50)) as sandbox:
        await sandbox.run("sleep 600 & echo", timeout_s=60)
        assert (await sandbox.run("pgrep sleep", timeout_s=60)).stdout == ""
        forks = await sandbox.run(["python3", "-c", "import os\nwhile True: os.fork()"], timeout_s=20)
        assert not forks.timed_out or forks.exit_code


@needs_bwrap
async def test_a_folder_that_became_a_link_is_refused() -> None:
    async with ProcessSandbox() as sandbox:
        root = sandbox._root
        assert root is not None
        moved = await sandbox.run("rm -rf /proc; rmdir /dev; mv /usr /other; ln -s /tmp /usr", timeout_s=60)
        assert moved.exit_code
        (root / "proc").rmdir()
        (root / "proc").symlink_to("/oldroot/tmp")
        with pytest.raises(ProviderFailed, match="has made proc a link"):
            await sandbox.run("true", timeout_s=60)


@needs_bwrap
async def test_it_has_one_user() -> None:
    async with ProcessSandbox() as sandbox:
        assert (await sandbox.run("id -un", timeout_s=60, user="agent")).stdout == "agent\n"
        with pytest.raises(UsageError, match="use a DockerSandbox"):
            await sandbox.run("true", timeout_s=60, user="root")


async def test_without_bubblewrap_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchFailed, match="needs bwrap, .*apt-get install bubblewrap"):
        await ProcessSandbox().start()


INTERRUPTED = """
import asyncio
from openenv.agents import ProcessSandbox

async def main():
    async with ProcessSandbox() as sandbox:
        print("begun", flush=True)
        await sandbox.run("sleep 600", timeout_s=600)

asyncio.run(main())
"""


@needs_bwrap
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    here = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=here
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        program.send_signal(2)
        program.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == []


@needs_bwrap
async def test_a_mount_below_a_folder_that_only_root_may_enter_can_be_read(tmp_path: Path) -> None:
    mount = tmp_path / "in" / "it"
    mount.parent.mkdir(0o700)
    mount.mkdir()
    (mount / "file").write_text("text")
    async with ProcessSandbox(mounts=[mount]) as sandbox:
        assert (await sandbox.run(["cat", str(mount / "file")], timeout_s=60)).stdout == "text"
