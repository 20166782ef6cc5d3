"""Forwarders: their addresses, and what they say if a program or package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from openenv.capture.forwarding import CloudflareForwarder, DirectExposure, ForwardingError, make_forwarder

from .requests import ask


def test_a_direct_address_is_that_of_the_port(proxy: Any) -> None:
    with make_forwarder("direct") as forwarder:
        address = forwarder.start(proxy.port)
        assert (forwarder.url, forwarder.name) == (address, "DirectExposure")
        assert ask(address, "GET", "/health")[0] == 200
    assert forwarder.url is None
    assert DirectExposure("::1", "https").start(80) == "https://[::1]:80"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ForwardingError, match="choose one of cloudflare, direct, gradio"):
        make_forwarder("carrier-pigeon")


def test_a_missing_package_or_program_is_named_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ForwardingError, match="pip install gradio"):
        make_forwarder("gradio").start(80)
    with pytest.raises(ForwardingError, match="no-such-program is not installed: install it"):
        make_forwarder("cloudflare", binary="no-such-program").start(80)


def program(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_address_of_a_tunnel_is_read_from_its_program(tmp_path: Path) -> None:
    binary = program(
        tmp_path / "cloudflared", 'echo "$@" >$0.said', "echo INF https://a-b-c.trycloudflare.com >&2", "sleep 600"
    )
    forwarder = CloudflareForwarder(binary=binary)
    assert forwarder.start(8100) == "https://a-b-c.trycloudflare.com"
    assert (tmp_path / "cloudflared.said").read_text() == "tunnel --url http://127.0.0.1:8100\n"
    forwarder.stop()
    forwarder.stop()
    assert forwarder.url is None


def test_a_named_tunnel_has_the_address_of_its_hostname(tmp_path: Path) -> None:
    binary = program(tmp_path / "named", 'echo "INF Registered tunnel connection" >&2', "sleep 600")
    with make_forwarder("cloudflare", tunnel_name="rollouts", hostname="agents.example.org", binary=binary) as tunnel:
        assert tunnel.start(8100) == "https://agents.example.org"
    with pytest.raises(ForwardingError, match="give both, or neither"):
        CloudflareForwarder(tunnel_name="rollouts")


def test_a_tunnel_that_ends_says_why(tmp_path: Path) -> None:
    binary = program(tmp_path / "broken", 'echo "ERR no network" >&2', "exit 1")
    with pytest.raises(ForwardingError, match="no network"):
        CloudflareForwarder(binary=binary).start(8100)
