"""What a killed program left, and the command that removes it and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from openenv.providers.owner import OwnerProcess

from ..providers.test_process import lives
from ..server.wires import eventually

pytestmark = pytest.mark.real

TRAINER = """
import asyncio, sys, time
from openenv.providers import LaunchSpec, LocalProvider

async def train():
    # These do not go when they are asked to, as they are when their parent has died.
    command = [sys.executable, "-m", "openenv.testing.misbehaving", "cling"]
    made = await LocalProvider().launch(LaunchSpec(command=command, replicas=int(sys.argv[1])))
    for server in made.servers:
        while "hanging" not in await made.logs(server):
            await asyncio.sleep(0.01)
    print(made.name, *(server.handle.process.pid for server in made.servers), flush=True)
    time.sleep(60)

asyncio.run(train())
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not end when it is asked to is not waited for long."""
    monkeypatch.setattr("openenv.providers.local.GRACE_S", 0.2)


def run(*arguments: str) -> Result:
    """`openenv providers ...`"""
    return CliRunner().invoke(app, ["providers", *arguments])


@contextmanager
def trainer(replicas: int = 1) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """A program with servers of its own, their deployment and their processes."""
    program = subprocess.Popen([sys.executable, "-c", TRAINER, str(replicas)], stdout=subprocess.PIPE, text=True)
    pids: list[int] = []
    try:
        assert program.stdout is not None
        name, *numbers = program.stdout.readline().split()
        pids += map(int, numbers)
        yield program, name, pids
    finally:
        program.kill()
        program.communicate()
        for pid in pids:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)


def test_what_a_killed_trainer_left_is_removed_and_nothing_else() -> None:
    with ExitStack() as programs:
        victim, name, pids = programs.enter_context(trainer(3))
        _, bystander, others = programs.enter_context(trainer())
        victim.kill()
        victim.wait()
        assert all(map(lives, pids)), "they were to cling"

        said = run("list", "--provider", "local").output
        assert said.count(f"of {name} (owner ") == 3
        assert all(f"local process {pid} of {name}" in said for pid in pids)
        assert said.count(", dead)") >= 3
        assert f"process {others[0]} of {bystander}" in said

        said = run("gc", "--dry-run", "--provider", "local").output
        assert said.count(f"would remove local process {pids[0]} of {name}") == 1
        assert bystander not in said
        assert all(map(lives, pids))

        done = run("gc", "--provider", "local", name, "another-deployment")
        assert done.exit_code == 0
        assert all(f"removed local process {pid} of {name}" in done.output for pid in pids)
        assert "3 removed" in done.output
        eventually(lambda: not any(map(lives, pids)))
        assert all(map(lives, others))
        assert "0 removed" in run("gc", "--provider", "local", name).output
        assert "0 removed" in run("gc", "--provider", "local", bystander).output
        assert all(map(lives, others)), "what a living process has was removed"

        done = run("gc", "--provider", "local", "--all", bystander)
        assert "1 removed" in done.output
        eventually(lambda: not any(map(lives, others)))


@pytest.mark.slow
def test_servers_with_children_go_whole(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from openenv.providers import LaunchSpec, LocalProvider

async def train():
    made = await LocalProvider(max_sessions=4, workers=2).launch(LaunchSpec(target="echo"))
    await made.ready()
    print(made.name, made.servers[0].handle.process.pid, flush=True)
    os.kill(made.servers[0].handle.process.pid, 19)  # stopped, nobody hears that its parent has died
    os.kill(os.getpid(), 9)

asyncio.run(train())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    name, pid = ended.stdout.split()
    try:
        found = run("list", "--provider", "local").output
        assert found.count(f"of {name} ") >= 1
        done = run("gc", "--provider", "local", name)
        assert done.exit_code == 0, done.output
        eventually(lambda: name not in run("list", "--provider", "local").output)
    finally:
        if lives(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def test_a_place_that_never_answers_keeps_no_program_from_ending() -> None:
    program = """
import asyncio, threading
from types import SimpleNamespace
from openenv.providers import catalog

catalog.ANSWER_S = 0.1
(place,) = asyncio.run(catalog.places([SimpleNamespace(make=threading.Event().wait)]))
print(place.closed)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "no answer within 0.1 s\n"


def test_a_process_that_has_got_the_number_of_another_is_left_alone() -> None:
    from openenv.providers.local import _end_process

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as another:
        this = OwnerProcess.of(another.pid)
        _end_process(OwnerProcess(this.host, this.space, this.pid, "1"))
        assert another.poll() is None
        _end_process(this)
        assert another.wait(10) == -signal.SIGTERM
        _end_process(this)
