from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from openenv.core.harness import HarnessNotRunningError, HarnessProcess, HarnessStartupError
from tests.server.wires import eventually

ECHO = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"


def program(source: str, folder: Path, **options: float) -> HarnessProcess:
    return HarnessProcess([sys.executable, "-c", source], str(folder), {"COLOUR": "blue"}, **options)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits only to be reaped."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


async def test_lines_go_in_and_out(tmp_path: Path) -> None:
    process = program(ECHO, tmp_path)
    await process.start(lambda line: line == "ready")
    try:
        await process.write_line("größe")
        assert await process.read_line() == "eßörg"
        with pytest.raises(HarnessStartupError, match="runs already"):
            await process.start()
    finally:
        await process.stop()
        await process.stop()
    assert not process.is_running()
    with pytest.raises(HarnessNotRunningError):
        await process.write_line("more")


async def test_a_cancelled_read_loses_no_line(tmp_path: Path) -> None:
    process = program(ECHO, tmp_path)
    await process.start(lambda line: line == "ready")
    try:
        assert await process.read_line(timeout_s=0) is None
        reading = asyncio.create_task(process.read_line())
        await asyncio.wait([reading], timeout=0)
        reading.cancel()
        await asyncio.wait([reading])
        for text in ("one", "two"):
            await process.write_line(text)
        assert [await process.read_line(), await process.read_line()] == ["eno", "owt"]
    finally:
        await process.stop()


def test_it_may_be_used_on_one_event_loop_after_another(tmp_path: Path) -> None:
    process = program(ECHO, tmp_path)
    asyncio.run(process.start())
    assert asyncio.run(process.read_line()) == "ready"
    asyncio.run(process.write_line("abc"))
    assert asyncio.run(process.read_line()) == "cba"
    asyncio.run(process.stop())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys; sys.exit('no key')", "ended before it was ready; stderr: 'no key"),
        ("input()", r"not ready within 0\.1 s"),
    ],
)
async def test_a_program_that_does_not_become_ready_is_stopped(tmp_path: Path, source: str, reason: str) -> None:
    limit = 0.1 if "input" in source else 30.0
    process = program(source, tmp_path, startup_timeout_s=limit)
    with pytest.raises(HarnessStartupError, match=reason):
        await process.start(lambda line: False)
    assert not process.is_running()


async def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(HarnessStartupError, match="cannot be started"):
        await HarnessProcess(["/no/such/program"], str(tmp_path)).start()


async def test_the_children_of_a_stubborn_program_end_with_it(tmp_path: Path) -> None:
    source = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'])\n"
        "print(child.pid, flush=True)\n"
        "input()"
    )
    process = program(source, tmp_path, terminate_grace_s=0.1)
    await process.start()
    child = int(await process.read_line() or 0)
    await process.stop()
    await asyncio.to_thread(eventually, lambda: has_ended(child))


async def test_the_last_lines_of_stderr_are_kept_and_output_without_lines_is_bounded(tmp_path: Path) -> None:
    source = (
        "import sys\n"
        "for number in range(60): print(number, file=sys.stderr)\n"
        "sys.stdout.write('x' * 3_000_000)\n"
        "sys.stdout.flush()"
    )
    process = program(source, tmp_path)
    await process.start()
    parts = []
    while (part := await process.read_line()) is not None:
        parts.append(len(part))
    assert sum(parts) == 3_000_000
    assert max(parts) <= 1024 * 1024
    await process.stop()
    assert process.drain_stderr().split() == [str(number) for number in range(10, 60)]
