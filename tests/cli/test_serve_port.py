from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openenv.cli import serve
from openenv.cli.serve import holder_of


def test_a_port_that_this_process_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = holder_of(listener.getsockname()[1])
    assert told.startswith(f"process {os.getpid()} (")


def test_a_port_of_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert f"process {os.getpid()} " in holder_of(listener.getsockname()[1])


def test_the_command_line_of_another_process_is_shown_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    command = [sys.executable, "-c", code, "--api-key", "control:hidden", "--token=hidden", "db://me:hidden@host/"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = holder_of(int(process.stdout.readline()))
        monkeypatch.setattr(serve, "WIDTH", 1000)
        shown = serve._command(process.pid)
        process.communicate("\n")
    assert told.startswith(f"process {process.pid} ({sys.executable} -c ")
    assert len(told) < 200
    assert "hidden" not in told + shown
    assert shown.endswith("--api-key *** --token=*** db://***@host/")


def test_a_port_that_nobody_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert holder_of(port) == "another process"


def test_where_nothing_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PROC", tmp_path / "nowhere")
    assert holder_of(8000) == "another process"
    table = tmp_path / "proc" / "net"
    table.mkdir(parents=True)
    (table / "tcp").write_text("sl local rem st\n 0: 0100007F:1F40 00000000:0000 0A 0 0 0 0 0 77\n")
    (tmp_path / "proc" / "12").mkdir()
    monkeypatch.setattr(serve, "PROC", tmp_path / "proc")
    assert holder_of(8000) == "another process"
