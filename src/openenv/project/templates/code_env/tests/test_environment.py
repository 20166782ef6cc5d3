"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from my_env import MyAction, MyEnv, MyObservation, MyState
from my_env.server.my_env_environment import MyEnvironment
from my_env.server.program import MOST_OUTPUT, run

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, ResetRequired
from openenv.testing import EnvironmentConformance

Env = SyncEnvClient[MyAction, MyObservation, MyState]


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    # Fewer than the default: each step starts a process.
    sessions = 4
    episodes = 10

    def app(self) -> Any:
        return MyEnvironment

    def actions(self) -> list[dict[str, Any]]:
        return [{"code": "print(6 * 7)"}, {"code": "raise SystemExit(3)"}]


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    """A client of an environment that runs each session in a process, as a server does."""
    with MyEnv(env=MyEnvironment).sync() as client:
        yield client


def test_a_program_that_prints_the_answer_is_worth_one(env: Env) -> None:
    env.reset(seed=1)
    wrong = env.step(MyAction(code="print('no')"))
    assert (wrong.reward, wrong.done, wrong.observation.output) == (0.0, False, "no\n")
    right = env.step(MyAction(code=f"print({env.state().answer!r})"))
    assert (right.reward, right.terminated) == (1.0, True)
    with pytest.raises(ResetRequired):
        env.step(MyAction(code="print(1)"))


def test_a_program_that_fails_says_where(env: Env) -> None:
    env.reset(seed=1)
    seen = env.step(MyAction(code="a = 1\nprint(a / 0)")).observation
    assert seen.exit_code == 1
    assert 'File "program.py", line 2' in seen.output
    assert "ZeroDivisionError" in seen.output


def test_an_episode_is_cut_short_after_five_attempts(env: Env) -> None:
    env.reset(seed=1)
    results = [env.step(MyAction(code="pass")) for _ in range(5)]
    assert [result.truncated for result in results] == [False] * 4 + [True]
    assert not results[-1].terminated


def test_the_same_seed_sets_the_same_task(env: Env) -> None:
    tasks = [env.reset(seed=seed).observation.task for seed in (7, 7, 8)]
    assert tasks[0] == tasks[1] != tasks[2]


def test_a_program_that_is_too_long_is_refused(env: Env) -> None:
    env.reset()
    with pytest.raises(InvalidAction, match="code"):
        env.step(MyAction.model_construct(code="#" * 20_001))


def test_a_program_that_takes_too_long_is_stopped() -> None:
    assert run("while True: pass", seconds=0.5).exit_code is None


def test_nothing_that_a_program_started_goes_on_without_it() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux lists processes in /proc")
    seconds = f"60.{os.getpid()}"  # nothing else sleeps that long
    run(f"import subprocess\nsubprocess.Popen(['sleep', '{seconds}'])")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone already
            if seconds.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                pidfd = os.pidfd_open(int(process.name))
                assert select.select([pidfd], [], [], 10)[0], "it was still running after 10 seconds"
                os.close(pidfd)


def test_a_program_that_talks_too_much_is_cut() -> None:
    done = run("while True: print('x' * 1000)")
    assert done.exit_code != 0
    assert len(done.output) == MOST_OUTPUT


def test_a_program_that_takes_too_much_memory_is_told() -> None:
    assert "MemoryError" in run("x = bytearray(4 * 1024 ** 3)").output


def test_a_program_has_an_empty_folder_and_no_variables_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", "secret")
    done = run("import os\nprint(os.listdir(), 'OPENENV_API_KEYS' in os.environ, os.getcwd())")
    listing, known, folder = done.output.split()
    assert (listing, known) == ("[]", "False")
    assert not Path(folder).exists()
