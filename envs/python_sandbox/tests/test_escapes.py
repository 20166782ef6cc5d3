"""Attempts to escape from the sandbox: each ends like an ordinary step, and leaves no trace outside.

An attempt is a program in the folder escapes/. It prints `ESCAPED` if it succeeds. It runs in the sandbox. A harmless
attempt also runs outside, where it must succeed: otherwise its failure in the sandbox would prove nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openenv import SyncEnvClient
from openenv.errors import EnvironmentCrashed
from python_sandbox import PythonSandboxAction, PythonSandboxEnv, PythonSandboxObservation, PythonSandboxState
from python_sandbox.server.python_sandbox_environment import PythonSandboxEnvironment

from .host import VARIABLE, Host, descendants
from .unprivileged import Unprivileged

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

Env = SyncEnvClient[PythonSandboxAction, PythonSandboxObservation, PythonSandboxState]
INSIDE = "/inside/supervisor.py"
STEP_S = 0.5  # for attempts that only end when they are stopped
# If the server is not root, the limits are different. These attempts test them.
AS_USER = """become_root fork_bomb kill_the_supervisor namespaces process_memory ptrace raised_limits
    read_host_files write_outside"""


@dataclass(frozen=True)
class Attempt:
    """A program, and the facts in the comments at its top."""

    name: str
    code: str
    ends: list[str]
    outside: str
    submitted: bool
    then: list[str]

    @classmethod
    def of(cls, path: Path) -> Attempt:
        code = path.read_text()
        said = re.findall(r"^# ([a-z ]+): ?(.*)$", code, re.MULTILINE)
        lines = {key: text for key, text in said if key != "then"}
        then = [text for key, text in said if key == "then"]
        outside, ends = lines["without the sandbox"], lines["ends"].split()
        return cls(path.stem, code, ends, outside, "\n# submitted\n" in code, then)


ATTEMPTS = [Attempt.of(path) for path in sorted((Path(__file__).parent / "escapes").glob("*.py"))]
each_attempt = pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


@pytest.fixture(scope="module")
def victim(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    with host.victim() as process:
        yield process


def opened(host: Host, cls: type[PythonSandboxEnvironment]) -> Iterator[Env]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, host.escaped)  # the processes of sessions inherit it
        with PythonSandboxEnv(env=cls).sync() as client:
            client.reset(split="train", index=0)
            yield client


@pytest.fixture(scope="module")
def bystander(host: Host) -> Iterator[Env]:
    yield from opened(host, PythonSandboxEnvironment)


@pytest.fixture(scope="module")
def env(host: Host, bystander: Env) -> Iterator[Env]:
    yield from opened(host, PythonSandboxEnvironment)


@pytest.fixture(scope="module")
def env_of_a_user(host: Host, bystander: Env) -> Iterator[Env]:
    yield from opened(host, Unprivileged)


def text_of(seen: PythonSandboxObservation) -> str:
    return " ".join([seen.output, seen.reason, seen.value or "", *seen.files])


def act(env: Env, action: PythonSandboxAction) -> PythonSandboxObservation:
    result = env.step(action)
    seen = result.observation
    assert seen.status in ("ok", "error", "timeout", "crashed", "limit")
    assert len(text_of(seen).encode()) < 100_000
    if action.kind == "submit":
        assert (result.reward, seen.passed, result.terminated) == (0.0, 0.0, True)
    else:
        assert (result.reward, seen.passed, result.done) == (0.0, None, False)
    return seen


def follow(env: Env, attempt: Attempt, words: str, facts: dict[str, Any]) -> PythonSandboxObservation | None:
    """Executes a further step of an attempt."""
    kind, _, rest = words.partition(" ")
    rest = rest.format(**facts) if "{" in rest else rest.encode().decode("unicode_escape")
    if kind == "run":
        return act(env, PythonSandboxAction(code=rest))
    path = rest.encode("utf-8", "replace").decode()
    return act(env, PythonSandboxAction(kind=kind, path=path, content="x" if kind == "write" else ""))


@each_attempt
def test_an_attempt_is_contained(
    attempt: Attempt, host: Host, env: Env, bystander: Env, victim: subprocess.Popen[bytes]
) -> None:
    contained(attempt, host, env, bystander, victim)


@pytest.mark.parametrize("name", AS_USER.split())
def test_it_is_where_the_server_is_not_root(
    name: str, host: Host, env_of_a_user: Env, bystander: Env, victim: subprocess.Popen[bytes]
) -> None:
    attempt = next(each for each in ATTEMPTS if each.name == name)
    contained(attempt, host, env_of_a_user, bystander, victim)


def count(bystander: Env) -> int:
    """How often this function was called: the session counts in a variable, which no other session can see."""
    seen = bystander.step(PythonSandboxAction(code="count = globals().get('count', 0) + 1\ncount")).observation
    if seen.steps_left < 3:
        bystander.reset(split="train", index=0)
        bystander.step(PythonSandboxAction(code=f"count = {seen.value}"))
    return int(seen.value or 0)


def contained(attempt: Attempt, host: Host, env: Env, bystander: Env, victim: subprocess.Popen[bytes]) -> None:
    counted = count(bystander)
    begin = {"split": "train", "index": 0, "step_s": STEP_S if "timeout" in attempt.ends else None}
    env.reset(**begin)
    before = descendants(INSIDE)
    code = host.before(victim.pid) + attempt.code.replace("NAME", "sum_of_multiples")
    host.clean()
    kind = "submit" if attempt.submitted else "run"
    try:
        seen = act(env, PythonSandboxAction(kind=kind, code=code))
        status, texts = seen.status, [text_of(seen)]
    except EnvironmentCrashed as error:  # a bomb may reach the limit of its session before that of the sandbox
        status, texts = "limit" if "process_children" in error.message else "ended", [error.message]
        env.reset(**begin)
    assert status in attempt.ends, texts
    for words in attempt.then:
        if words == "again":
            env.reset(**begin)
            with contextlib.contextmanager(opened)(host, PythonSandboxEnvironment) as other:
                texts += [text_of(act(session, PythonSandboxAction(code=code))) for session in (env, other)]
        else:
            after = follow(env, attempt, words, host.facts(victim.pid))
            texts.append("" if after is None else text_of(after))
    assert not [text for text in texts if host.escaped in text]
    assert "root:" not in "".join(texts)
    # The host and its process are unchanged.
    assert host.traces() == []
    assert victim.poll() is None
    # The session continues, with a new interpreter if necessary.
    if attempt.submitted:
        env.reset(**begin)
    values = (act(env, PythonSandboxAction(code="6 * 7")).value for _ in range(4))
    assert "42" in values
    # No process of the attempt survives its episode. The kernel takes its time for hundreds of them.
    env.reset(split="train", index=0)
    for pid in set(descendants(INSIDE)) - set(before):
        with contextlib.suppress(ProcessLookupError):
            expect_end(os.pidfd_open(pid))
    assert count(bystander) == counted + 1


def test_a_sandbox_ends_with_the_process_of_its_session(host: Host) -> None:
    with contextlib.contextmanager(opened)(host, PythonSandboxEnvironment) as env:
        before = set(descendants(INSIDE))
        env.step(PythonSandboxAction(code="import os\nos.fork()"))
        inside = set(descendants(INSIDE)) - before
        assert len(inside) >= 3
        ends = [os.pidfd_open(pid) for pid in inside]
        bubblewrap = next(pid for pid in inside if Path(f"/proc/{pid}/comm").read_text() == "bwrap\n")
        os.kill(int(Path(f"/proc/{bubblewrap}/stat").read_text().split()[3]), signal.SIGKILL)
        with pytest.raises(EnvironmentCrashed):
            env.step(PythonSandboxAction(code="1"))
        for end in ends:
            expect_end(end)
        env.reset(split="train", index=0)
        assert env.step(PythonSandboxAction(code="6 * 7")).observation.value == "42"


def expect_end(process: int) -> None:
    """Waits for the end of a process, and closes its descriptor."""
    try:
        assert select.select([process], [], [], 10)[0], "it survives"
    finally:
        os.close(process)


def test_between_two_steps_nothing_runs(env: Env) -> None:
    env.reset(split="train", index=0)
    before = set(descendants(INSIDE))
    act(env, PythonSandboxAction(code="import os\nif os.fork() == 0:\n    while True: pass"))
    inside = set(descendants(INSIDE)) - before
    deadline = time.monotonic() + 10
    while stopped(inside) < 2 and time.monotonic() < deadline:
        pass
    assert stopped(inside) == 2


def stopped(pids: set[int]) -> int:
    return sum(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" for pid in pids)


@each_attempt
def test_outside_it_would_have_succeeded(attempt: Attempt, host: Host, tmp_path: Path) -> None:
    if not attempt.outside.startswith("escapes"):
        pytest.skip(attempt.outside)
    if attempt.outside.endswith("as root") and not is_root():
        pytest.skip("only where the server is root")
    said = ""
    with host.victim() as victim:
        for _ in range(1 + ("again" in attempt.then)):
            said += run_outside(host.before(victim.pid) + attempt.code.replace("NAME", "solve"), tmp_path, host)
    host.clean()
    assert host.escaped in said


def run_outside(code: str, folder: Path, host: Host) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, VARIABLE: host.escaped},
        capture_output=True,
        timeout=20,
        check=False,
    )
    said = done.stdout.decode("utf-8", "replace")
    if found := re.search(r"daemon (\d+)", said):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(found[1]), signal.SIGKILL)
    return said


def is_root() -> bool:
    found = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return found is not None and bool(int(found[1], 16) >> 21 & 1)


def test_there_are_thirty_attempts_and_more() -> None:
    assert len(ATTEMPTS) >= 30
    assert sum(attempt.outside.startswith("escapes") for attempt in ATTEMPTS) >= 20
