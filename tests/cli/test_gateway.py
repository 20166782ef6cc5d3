"""`openenv gateway`: what it reads, writes and refuses. What it runs is for tests/infra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from openenv.cli.gateway import GatewayRun, gateway, read_backends
from openenv.errors import UsageError
from openenv.providers.gateway import Backend, Topology

TWO = "first=10.0.0.1:8000,10.0.0.2:8000"


def render(*arguments: str) -> Result:
    return CliRunner().invoke(gateway, ["render", *arguments], catch_exceptions=False)


def refused(*arguments: str, verb: str = "render") -> str:
    with pytest.raises(UsageError) as told:
        CliRunner().invoke(gateway, [verb, *arguments], catch_exceptions=False)
    return told.value.message


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("envoy", {"envoy.yaml", "routes.yaml", "clusters.yaml", "endpoints.yaml"}),
        ("haproxy", {"haproxy.cfg"}),
        ("nginx", {"nginx.conf"}),
    ],
)
def test_a_configuration_is_written_for_each_balancer(kind: str, files: set[str], tmp_path: Path) -> None:
    result = render("--backends", TWO, "--format", kind, "--output-dir", str(tmp_path / "new"), "--no-check")
    assert result.exit_code == 0
    assert {file.name for file in (tmp_path / "new").iterdir()} == files
    assert result.output.count("written: ") == len(files)
    assert "not checked" in result.output
    assert "start it with: " in result.output


def test_all_options_arrive(tmp_path: Path) -> None:
    listen = ["--listen", "0.0.0.0:8443", "--admin-port", "9901", "--max-sessions", "77", "--health-path", "/up"]
    tls = ["--tls-cert", "/tls/a.pem", "--tls-key", "/tls/b.pem", "--backend-ca", "/tls/ca.pem"]
    render("--backends", TWO, *listen, *tls, "--output-dir", str(tmp_path), "--no-check", "--folder", "/etc/x")
    bootstrap = yaml.safe_load((tmp_path / "envoy.yaml").read_text())
    assert bootstrap["admin"]["address"]["socket_address"]["port_value"] == 9901
    (listener,) = bootstrap["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "0.0.0.0", "port_value": 8443}
    text = "".join(file.read_text() for file in tmp_path.iterdir())
    for word in ("/etc/x/routes.yaml", "/tls/a.pem", "/tls/b.pem", "/tls/ca.pem", "max_connections: 77", "path: /up"):
        assert word in text


def test_the_command_that_is_named_works_wherever_the_program_looks_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = render("--backends", TWO, "--format", "nginx", "--output-dir", "here", "--no-check")
    assert result.output.splitlines()[-1] == f"start it with: nginx -c {tmp_path}/here/nginx.conf"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--output-dir" in refused("--backends", TWO, "--output-dir", str(tmp_path / "file" / "new"))


def test_a_file_of_backends_may_have_comments(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    file.write_text("# ours\nfirst=10.0.0.1:8000  # the old one\n\n  10.0.0.2:8000\n", encoding="utf-8")
    assert read_backends(file) == ["first=10.0.0.1:8000", "10.0.0.2:8000"]
    render("--backends-file", str(file), "--format", "haproxy", "--output-dir", str(tmp_path), "--no-check")
    assert "server first 10.0.0.1:8000" in (tmp_path / "haproxy.cfg").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--backends"),
        (["--backends", TWO, "--backends-file", "x"], "not both"),
        (["--backends-file", "/nowhere"], "/nowhere"),
        (["--backends", "host:port"], "is not a backend"),
        (["--backends", "a b:1"], "neither an address nor a host name"),
        (["--backends", "a=h:1,a=h:2"], "'a'"),
        (["--backends", TWO, "--listen", "8000"], "--listen"),
        (["--backends", TWO, "--listen", "host:8000"], "IP address"),
        (["--backends", TWO, "--tls-cert", "a"], "tls_key"),
        (["--backends", "https://h", "--format", "nginx"], "Envoy or HAProxy"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused(*arguments, *(["--output-dir", str(tmp_path)] if arguments else []))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--backends"),
        (["--backends", TWO, "--target", "echo"], "--target needs --provider"),
        (["--provider", "local", "--backends", TWO, "--target", "echo"], "either"),
        (["--provider", "nowhere", "--target", "echo"], "nowhere"),
        (["--backends", TWO, "--scale", "1:2"], "--scale MIN:MAX needs --provider"),
        (["--provider", "local", "--target", "echo", "--scale", "1:2", "--replicas", "2"], "no --replicas"),
        (["--provider", "local", "--target", "echo", "--scale", "4"], "as 1:8, got '4'"),
        (["--provider", "local", "--target", "echo", "--scale", "3:2"], "got 3:2"),
        (["--provider", "local", "--target", "echo", "--scale", "1:2", "--utilization", "7"], "utilization"),
        (["--provider", "local"], "LaunchSpec"),
        (["--provider", "local", "--target", "echo", "--env", "OPENENV_SURELY_NOT_SET"], "OPENENV_SURELY_NOT_SET"),
        (["--provider", "local", "--target", "echo", "--env", "MODEL_TOKEN=hush"], "set MODEL_TOKEN in this shell"),
    ],
)
def test_what_cannot_run_is_refused(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments, verb="run")


class Following:
    """What a gateway is to the command that watches a file."""

    def __init__(self) -> None:
        self.topology = Topology()

    async def update(self, backends: list[str]) -> None:
        self.topology = Topology(backends=tuple(map(Backend.parse, backends)))


async def test_a_file_that_changes_before_it_is_watched_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    file.touch()  # as the command found it
    file.write_text("a=127.0.0.1:1\n", encoding="utf-8")
    following: Any = Following()
    await GatewayRun(Topology(), {"backends_file": file})._reread(following)
    assert [backend.name for backend in following.topology.backends] == ["a"]
