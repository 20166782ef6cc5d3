"""Whether the process that something belongs to still runs: what is not surely dead is never called so."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openenv.providers import owner
from openenv.providers.owner import OwnerProcess

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
OF_KUBERNETES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,61}[A-Za-z0-9]")


def test_this_process_lives_and_is_read_again() -> None:
    this = OwnerProcess.this()
    assert this.alive is True
    assert OwnerProcess.read(str(this)) == this
    assert this.pid == os.getpid()


@pytest.mark.parametrize("name", ["h", "-a.very_long.name-of-a-machine.in-a-domain.example-", "", "ümläut", "a" * 64])
def test_its_text_is_a_label_everywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    this = replace(OwnerProcess.this(), pid=4_194_304, born="9" * 10)
    assert OF_KUBERNETES.fullmatch(str(this))
    assert OwnerProcess.read(str(this)) == this


@pytest.mark.parametrize("text", ["", "a_b_c", "a_b_c_d_e", "a_b_x_d", "a_b_-1_d", "a_b_0_d"])
def test_what_is_no_owner(text: str) -> None:
    assert OwnerProcess.read(text) is None


def test_one_that_was_killed_is_dead_before_it_is_reaped_and_after() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as program:
        one = OwnerProcess.of(program.pid)
        assert one.alive is True
        program.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert one.alive is False
    assert one.alive is False


def test_another_process_of_the_same_number_is_not_it() -> None:
    assert replace(OwnerProcess.this(), born="1").alive is False


def test_the_number_of_a_process_that_never_was() -> None:
    this = OwnerProcess.this()
    assert replace(this, pid=10**9).alive is False
    assert replace(this, pid=10**30).alive is False


def test_another_machine_cannot_be_seen() -> None:
    this = OwnerProcess.this()
    assert replace(this, host="elsewhere-12345678").alive is None
    assert replace(this, host="elsewhere-12345678", born="1", pid=1).alive is None


def test_machines_of_the_same_long_name_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "trainer-deployment-5f7d8c9b6-abcde")
    there = replace(OwnerProcess.this(), space="0123456789ab-4026531836")
    monkeypatch.setattr(socket, "gethostname", lambda: "trainer-deployment-5f7d8c9b6-vwxyz")
    assert there.alive is None


def space_of(monkeypatch: pytest.MonkeyPatch, space: str, identity: str = "f" * 32) -> None:
    monkeypatch.setattr(owner, "_space", lambda: space)
    monkeypatch.setattr(owner, "_identity", lambda: identity)


def test_a_machine_that_has_been_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    space_of(monkeypatch, "aaaaaaaaaaaa-4026531836")
    before = OwnerProcess.this()
    space_of(monkeypatch, "bbbbbbbbbbbb-4026531836")
    assert before.alive is False


@pytest.mark.parametrize(
    ("then", "now", "identity"),
    [
        ("aaaaaaaaaaaa-4026531836", "aaaaaaaaaaaa-4026532000", "f" * 32),  # a container on this machine looks out
        ("aaaaaaaaaaaa-4026532000", "aaaaaaaaaaaa-4026531836", "f" * 32),  # and this machine looks in
        ("aaaaaaaaaaaa-4026532000", "bbbbbbbbbbbb-4026532000", "f" * 32),  # containers of one image, on two machines
        ("aaaaaaaaaaaa-4026531836", "bbbbbbbbbbbb-4026531836", ""),  # machines that have nothing but a name
        ("0", "0", "f" * 32),  # the system does not tell
        ("aaaaaaaaaaaa-4026531836", "0", "f" * 32),
    ],
)
def test_what_cannot_be_known(then: str, now: str, identity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space_of(monkeypatch, then, identity)
    one = replace(OwnerProcess.this(), born="1")
    space_of(monkeypatch, now, identity)
    assert one.alive is None


def test_processes_that_are_hidden_from_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    this = OwnerProcess.this()
    gone = replace(this, pid=10**9)
    monkeypatch.setattr(Path, "read_text", hidden)
    assert (this.alive, gone.alive) == (None, False)
