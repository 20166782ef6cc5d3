"""The server that misbehaves, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import OpenEnvError, SessionLost
from openenv.testing import misbehaving

from ..ports import held_port

pytestmark = pytest.mark.real


@contextmanager
def running(*behaviour: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with held_port() as port:
        variables = {**os.environ, "HOST": "127.0.0.1", "PORT": str(port), "OPENENV_RESUME_WINDOW_S": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "openenv.testing.misbehaving", *behaviour],
            env=variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str], word: str) -> bool:
    assert process.stderr is not None
    return any(word in line for line in iter(process.stderr.readline, ""))


@pytest.mark.parametrize("behaviour", [("serve",), ("slow-start", "0.1")])
def test_one_that_serves(behaviour: tuple[str, ...]) -> None:
    with running(*behaviour) as (process, url):
        assert said(process, url)
        with GenericEnvClient(url) as env:
            env.reset()
            assert env.step({"message": "hi"}).observation["message"] == "hi"
            assert env.state()["step_count"] == 1


@pytest.mark.slow
def test_one_that_dies_of_a_step() -> None:
    with running("die-on-step") as (process, url):
        assert said(process, url)
        with GenericEnvClient(url) as env:
            env.reset()
            env.step({"message": "hi"})
            with pytest.raises(SessionLost):
                env.step({"message": misbehaving.DIE})
        assert process.wait(10) == misbehaving.CRASH_CODE


def test_one_that_crashes() -> None:
    with running("crash") as (process, _):
        assert said(process, misbehaving.LAST_WORDS)
        assert process.wait(10) == misbehaving.CRASH_CODE


@pytest.mark.parametrize("behaviour", ["hang", "cling"])
def test_one_that_never_answers(behaviour: str) -> None:
    with running(behaviour) as (process, url):
        assert said(process, url)
        with pytest.raises(OpenEnvError):
            with GenericEnvClient(url, connect_timeout_s=0.2) as env:
                env.reset()
        process.terminate()
        if behaviour == "hang":
            assert process.wait(10) != 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)


@pytest.mark.parametrize("arguments", [(), ("sulk",)])
def test_what_is_no_behaviour(arguments: tuple[str, ...]) -> None:
    with running(*arguments) as (process, _):
        assert said(process, "usage: python -m openenv.testing.misbehaving serve|slow-start")
        assert process.wait(10) == 1
