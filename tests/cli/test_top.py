from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from fastapi import FastAPI, Response

import openenv.cli
from openenv.cli import main
from openenv.cli.top import Interval, Scrape
from openenv.errors import StepFailed
from openenv.server.prometheus import exposition
from openenv.telemetry.metrics import METER, Count, Gauge, Meter, Phase

from ..server.probe import InlineProbe, app_of
from ..server.wires import WIRES, served

PATIENCE_S = 30.0


@pytest.fixture
def top(monkeypatch, capsys):
    """Runs `openenv top ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["openenv", "top", *arguments, "--interval", "0.1"])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def drawn(meter, sessions=None, width=80, height=40, before=None):
    """The lines of a picture."""
    from rich.console import Console

    from openenv.cli.display import picture

    first = before or Meter()
    first.start()
    slots = 5, 8
    scrapes = [
        Scrape.parse(exposition([one.reading()], *slots).decode(), at) for at, one in ((0.0, first), (2.0, meter))
    ]
    console = Console(width=width, height=height, file=io.StringIO())
    with console.capture() as capture:
        console.print(picture("http://here", Interval(*scrapes), sessions, width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.fixture
def meter():
    meter = Meter()
    meter.start()
    return meter


def line_of(lines, word):
    return next(line.split() for line in lines if line.split()[:1] == [word])


class TestPicture:
    def test_numbers_are_where_one_looks_for_them(self, meter):
        meter.add(Gauge.LIVE, 3)
        meter.add(Gauge.EXECUTING, 2)
        meter.add(Gauge.QUEUED, 7)
        meter.add(Gauge.STUCK_THREADS, 1)
        meter.set(Gauge.LOOP_LAG_NS, 250_000_000)
        meter.add(Count.WORKER_RESTARTS)
        meter.observe_many(Phase.STEP, 0.003, 4000)
        meter.failed(StepFailed("it raised"))
        lines = drawn(meter)
        text = "\n".join(lines)
        for part in (
            "1 worker (1 restart)",
            "5 of 8   7 wait for one",
            "3 live   2 executing   0 detached",
            "2,000 steps/s   0 resets/s",
            "1 stuck",
            "250 ms",
        ):
            assert part in text
        assert line_of(lines, "step")[1:4] == ["2,000", "3.0", "ms"]
        assert line_of(lines, "StepFailed") == ["StepFailed", "environment", "0.5", "1"]

    def test_what_did_not_happen_is_a_dash(self, meter):
        lines = drawn(meter)
        assert line_of(lines, "reset") == ["reset", "-", "-", "-", "-"]
        assert not any("errors" in line for line in lines)

    @pytest.mark.parametrize("width", [30, 60, 80, 200])
    def test_it_fits_into_every_terminal(self, meter, width):
        meter.observe_many(Phase.STEP, 0.003, 4000)
        meter.failed(StepFailed("it raised"))
        sessions = [session("s" * 64, float(number)) for number in range(100)]
        assert max(map(len, drawn(meter, sessions, width))) <= width

    @pytest.mark.parametrize("height", [10, 24, 50])
    def test_sessions_get_the_lines_that_are_left(self, meter, height):
        meter.failed(StepFailed("it raised"))
        lines = drawn(meter, [session(f"s{number}", float(number)) for number in range(100)], height=height)
        assert len(lines) <= max(height, 20)
        assert any(line.lstrip().startswith("s99 ") for line in lines) is (height > 20)

    def test_those_that_are_idle_longest_come_first(self, meter):
        lines = drawn(meter, [session("young", 1.0), session("busy", None), session("old", 90.0)])
        order = [
            line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in {"young", "busy", "old"}
        ]
        assert order == ["old", "young", "busy"]

    def test_names_of_sessions_are_not_read_as_markup(self, meter):
        assert any("[red]" in line for line in drawn(meter, [session("[red]x", 1.0)]))


def session(name, idle_s):
    facts = {"state": "live", "age_s": 100.0, "steps": 12, "worker": None, "peer": "127.0.0.1:1"}
    return {"id": name, "idle_s": idle_s, **facts}


class TestOnce:
    def test_it_shows_a_server(self, top):
        app = app_of(InlineProbe)
        with WIRES["memory"](app) as open_wire, served(app) as address:
            wire = open_wire()
            wire.step()
            code, output, complaints = top(address, "--once")
            wire.close()
        assert (code, complaints) == (0, "")
        lines = output.splitlines()
        assert any(f"http://{address}" in line for line in lines)
        assert "1 of 4" in output
        assert re.search(r"^ \w{32} +live +\d+ +\d+ +1 +- +-$", output, re.MULTILINE)
        assert not any(line.endswith(" ") for line in lines)

    def test_without_a_terminal_it_is_so_anyway(self, top):
        with served(app_of(InlineProbe)) as address:
            code, output, _ = top(f"ws://{address}/ws")
        assert code == 0
        assert "0 of 4" in output

    def test_a_key_is_shown(self, top, monkeypatch):
        keys = {"api_keys": "view:looker-looker-looker,control:doer-doer-doer-doer"}
        with served(app_of(InlineProbe, **keys)) as address:
            code, output, complaints = top(address, "--once")
            assert (code, output) == (1, "")
            assert "--api-key" in complaints
            assert "Traceback" not in complaints
            assert top(address, "--once", "--api-key", "not-this-one")[0] == 1
            assert top(address, "--once", "--api-key", "looker-looker-looker")[0] == 0
            monkeypatch.setenv("OPENENV_API_KEY", "doer-doer-doer-doer")
            assert top(address, "--once")[0] == 0

    def test_it_asks_only_what_its_key_permits(self, top, caplog):
        keys = {"api_keys": "view:looker-looker-looker,control:doer-doer-doer-doer"}
        with served(app_of(InlineProbe, **keys)) as address:
            assert top(address, "--once", "--api-key", "looker-looker-looker")[0] == 0
            assert caplog.messages == []
            top(address, "--once")
        assert any("Unauthorized" in message for message in caplog.messages)

    @pytest.mark.parametrize(("key", "lists"), [("looker-looker-looker", False), ("doer-doer-doer-doer", True)])
    def test_sessions_are_listed_for_a_key_that_permits_it(self, top, key, lists):
        app = app_of(InlineProbe, api_keys="view:looker-looker-looker,control:doer-doer-doer-doer")
        with WIRES["memory"](app) as open_wire, served(app) as address:
            wire = open_wire()
            wire.step()
            output = top(address, "--once", "--api-key", key)[1]
            wire.close()
        assert "1 of 4" in output
        assert (re.search(r"^ \w{32} +live", output, re.MULTILINE) is not None) is lists

    def test_who_is_not_there_is_said(self, top):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        code, output, complaints = top(f"127.0.0.1:{port}", "--once")
        assert (code, output) == (1, "")
        assert f"no answer from http://127.0.0.1:{port}/metrics: Connection refused; is the server up?" in complaints
        assert len(complaints.splitlines()) == 1

    @pytest.mark.parametrize(
        ("settings", "complaint"), [({"metrics": False}, "metrics are off"), ({}, "not Prometheus text")]
    )
    def test_a_server_that_has_no_metrics(self, top, settings, complaint):
        app = app_of(InlineProbe, **settings)
        if not settings:
            app = FastAPI()
            app.add_api_route("/metrics", lambda: Response("<p>Hello</p>"))
        with served(app) as address:
            code, output, complaints = top(address, "--once")
        assert (code, output) == (1, "")
        assert complaint in complaints

    def test_what_is_no_address(self, top):
        code, _, complaints = top("ftp://here")
        assert code == 1
        assert "ftp://here" in complaints

    def test_a_missing_extra_is_named(self, top, monkeypatch):
        monkeypatch.setitem(sys.modules, "rich.console", None)
        monkeypatch.delitem(sys.modules, "openenv.cli.display", raising=False)
        monkeypatch.delattr(openenv.cli, "display", raising=False)
        code, _, complaints = top("here:8000", "--once")
        assert code == 1
        assert "pip install 'openenv[bench]'" in complaints


class Terminal:
    """`openenv top` in a terminal of its own."""

    def __init__(self, *arguments):
        self._end, far = pty.openpty()
        command = [sys.executable, "-m", "openenv", "top", *arguments, "--interval", "0.1"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
        self.process = subprocess.Popen(
            command, stdin=far, stdout=far, stderr=far, env=environment, start_new_session=True
        )
        os.close(far)
        self.text = ""

    def sees(self, part):
        """Waits until something is on the screen."""
        limit = time.monotonic() + PATIENCE_S
        while part not in self.text:
            assert time.monotonic() < limit, self.text[-3000:]
            self._read()

    def ends(self):
        """What it ends with."""
        limit = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < limit
            self._read()
        return self.process.returncode

    def _read(self):
        if select.select([self._end], [], [], 0.05)[0]:
            try:
                self.text += os.read(self._end, 65536).decode(errors="replace")
            except OSError:  # its other end is closed
                time.sleep(0.01)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@contextmanager
def terminal(*arguments):
    found = Terminal(*arguments)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.real
class TestLive:
    def test_it_draws_until_it_is_told_to_stop(self):
        app = app_of(InlineProbe)
        with served(app) as address, terminal(address) as screen:
            screen.sees("0 of 4")
            METER.add(Gauge.QUEUED, 3)
            screen.sees("3 wait for one")
            METER.add(Gauge.QUEUED, -3)
            os.kill(screen.process.pid, signal.SIGINT)
            assert screen.ends() == 130
            assert "Traceback" not in screen.text

    def test_a_server_that_goes_away_is_waited_for(self):
        # Nobody else can take the port, and nobody listens there.
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        with listener, terminal(f"127.0.0.1:{listener.getsockname()[1]}") as screen:
            screen.sees("trying again")
            with served_at(listener):
                screen.sees("0 of 4")
                screen.text = ""
            screen.sees("no answer from")
            os.kill(screen.process.pid, signal.SIGINT)
            assert screen.ends() == 130

    def test_a_key_that_is_not_accepted_ends_it(self):
        with served(app_of(InlineProbe, api_keys="a-key-of-sixteen")) as address, terminal(address) as screen:
            assert screen.ends() == 1
            screen.sees("--api-key")


@contextmanager
def served_at(listener):
    import uvicorn

    config = uvicorn.Config(app_of(InlineProbe), log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
